"""The pipeline of :mod:`benchmarks.decode` as other libraries would have it written, for the same files and model.

Each function returns endless batches. None of them keeps the random draws of the unmodified script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def dali(folder: Path, batch: int, workers: int) -> Iterator[Any]:
    """NVIDIA DALI: the GPU's engines decode the random crops, and its kernels do the rest."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    @pipeline_def
    def pipeline() -> Any:
        files, labels = fn.readers.file(file_root=str(folder), random_shuffle=True)
        images = fn.decoders.image_random_crop(files, device="mixed", random_area=[0.08, 1.0])
        images = fn.crop_mirror_normalize(
            fn.resize(images, size=[224, 224]),
            mirror=fn.random.coin_flip(),
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            dtype=types.FLOAT,
        )
        return images, labels.gpu()

    made = pipeline(batch_size=batch, num_threads=workers, device_id=0)
    for (given,) in DALIClassificationIterator([made]):
        yield given["data"], given["label"].squeeze(1).long()


def tensors(folder: Path, batch: int, workers: int) -> Iterator[Any]:
    """Torchvision's transforms v2 on tensors, in the workers."""
    chain = v2.Compose(
        [
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    return iter(endless(folder, batch, workers, chain, _decoded))


def kornia(folder: Path, batch: int, workers: int) -> Iterator[Any]:
    """Kornia on the GPU, for what it does to a batch of images of one size; cropping stays in the workers."""
    from kornia.augmentation import AugmentationSequential, Normalize, RandomHorizontalFlip

    chain = AugmentationSequential(RandomHorizontalFlip(), Normalize(MEAN, STD))
    for images, labels in endless(folder, batch, workers, v2.RandomResizedCrop(224, antialias=True), _decoded):
        yield chain(images.to("cuda", non_blocking=True).float() / 255), labels


PEERS: dict[str, Callable[[Path, int, int], Iterator[Any]]] = {"dali": dali, "v2": tensors, "kornia": kornia}


def endless(
    folder: Path, batch: int, workers: int, transform: Any, opened: Callable[[str], Any] = default_loader
) -> DataLoader[Any]:
    """Return a loader whose epoch never ends, of the images in ``folder`` as ``opened`` opens them."""
    data = ImageFolder(str(folder), transform, loader=opened)
    sampler = RandomSampler(data, replacement=True, num_samples=10**7)
    return DataLoader(data, batch, sampler=sampler, num_workers=workers, pin_memory=True)


def _decoded(path: str) -> torch.Tensor:
    return decode_image(path, ImageReadMode.RGB)
