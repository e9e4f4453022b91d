"""A typical training script with selectable parts: what it loads, how it transforms that, and with how many workers.

    python planted.py --chain heavy --workers 8
    python planted.py --source jpeg --chain pictures --batch-size 128 --steps 50

Images are made in memory. Training ends after ``--steps`` steps, over as many epochs as necessary.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torchvision.transforms as v1
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

CLASSES = 10
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def gamma(image: Tensor) -> Tensor:
    """A user-defined function that depends only on the pixels."""
    return image.clamp(0, 1) ** 0.9


def per_call(image: Tensor) -> Tensor:
    """A user-defined function with a fixed time per call, whatever the number of pixels."""
    time.sleep(0.003)
    return image * 0.5


def through_numpy(image: Tensor) -> Tensor:
    """A user-defined function that leaves torch in between."""
    return torch.from_numpy(np.ascontiguousarray(np.roll(image.numpy(), 3, axis=-1)))


def jittered(image: Tensor) -> Tensor:
    """A user-defined function that draws random numbers."""
    return image * (0.9 + 0.2 * float(torch.rand(())))


def chain(name: str, size: int) -> Callable[..., Any] | None:
    """Return the transforms of one sample, by name."""
    to_float, normalize = v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)
    crop, flip = v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()
    links: dict[str, list[Any]] = {
        "flips": [flip, v2.RandomVerticalFlip()],
        "exact": [v2.RandomCrop(size), flip, to_float],
        "usual": [crop, flip, to_float, normalize],
        "heavy": [crop, flip, v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.GaussianBlur(9), to_float, normalize],
        "fixed": [v2.Resize(size, antialias=True), v2.CenterCrop(size), to_float, normalize],
        "randaugment": [crop, v2.RandAugment(), to_float, normalize],
        "blur-float": [to_float, v2.RandomRotation(30), v2.GaussianBlur(9), normalize],
        "to-image": [v2.ToImage(), crop, flip, to_float, normalize],
        "gamma": [crop, to_float, gamma],
        "per-call": [flip, to_float, per_call],
        "numpy-last": [crop, to_float, through_numpy],
        "numpy-first": [through_numpy, crop, to_float, normalize],
        "jittered": [crop, to_float, jittered],
        "lambda": [crop, to_float, v2.Lambda(lambda image: image * 2 - 1)],
    }
    pictures: dict[str, list[Any]] = {
        "pictures": [v1.RandomResizedCrop(size), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)],
        "pictures-crop": [v1.RandomCrop(size), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)],
    }
    if name in pictures:
        return v1.Compose(pictures[name])
    return v2.Compose(links[name]) if name in links else None


CHAINS = (
    "none", "flips", "exact", "usual", "heavy", "fixed", "randaugment", "blur-float", "to-image", "gamma", "per-call",
    "numpy-last", "numpy-first", "jittered", "lambda", "pictures", "pictures-crop",
)  # fmt: skip


class Images(Dataset[Any]):
    """Images in memory, and the work before their transforms: decoding, waiting for storage."""

    def __init__(self, args: argparse.Namespace) -> None:
        draw = torch.Generator().manual_seed(0)
        # Enlarged noise from a coarse grid: a JPEG file of it is about as large as a photograph's.
        coarse = torch.randint(0, 256, (args.images, 3, 8, 8), generator=draw, dtype=torch.uint8)
        pixels = v2.functional.resize(coarse, [args.side, args.side], antialias=True)
        self.source, self.samples = args.source, args.samples
        self.wait, self.extra, self.kind = args.storage_ms / 1000, args.extra_kb, args.batch
        self.transform = chain(args.chain, args.size)
        self.data: list[Any] = [self._stored(image) for image in pixels]

    def _stored(self, image: Tensor) -> Any:
        if self.source == "float":
            return image / 255
        if self.source in ("tensor", "mask"):
            return image
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        if self.source == "picture":
            return picture
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=90)
        return file.getvalue()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        if self.wait:
            time.sleep(self.wait)
        image, label = self.data[index % len(self.data)], index % CLASSES
        if self.source == "jpeg":
            image = Image.open(io.BytesIO(image)).convert("RGB")
        if self.source == "mask":
            image, mask = self.transform(tv_tensors.Image(image), tv_tensors.Mask(image[:1]))  # type: ignore[misc]
            return image, label, mask
        if self.transform is not None:
            image = self.transform(image)
        if self.extra:
            return image, label, torch.zeros(self.extra, 256)
        return {"image": image, "label": label} if self.kind == "dict" else (image, label)


class Stream(IterableDataset[Any]):
    """The same images without an index."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __iter__(self) -> Iterator[Any]:
        return (self.images[index] for index in range(len(self.images)))


class Bands(Sampler[list[int]]):
    """A batch sampler of neighbours, in random order."""

    def __init__(self, samples: int, batch_size: int) -> None:
        self.samples, self.batch_size = samples, batch_size

    def __len__(self) -> int:
        return self.samples // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for band in torch.randperm(len(self)).tolist():
            yield list(range(band * self.batch_size, (band + 1) * self.batch_size))


def slow_collate(samples: list[Any]) -> Any:
    """Collate sample by sample into a growing batch."""
    image, label = samples[0]
    images, labels = image[None], [label]
    for image, label in samples[1:]:
        images, labels = torch.cat([images, image[None]]), [*labels, label]
    return images, torch.tensor(labels)


def mixed_up(samples: list[Any]) -> Any:
    return v2.MixUp(num_classes=CLASSES)(*default_collate(samples))


COLLATE: dict[str, Callable[[list[Any]], Any] | None] = {"default": None, "slow": slow_collate, "mixup": mixed_up}


def make_loader(args: argparse.Namespace) -> DataLoader[Any]:
    images = Images(args)
    options: dict[str, Any] = {
        "num_workers": args.workers,
        "pin_memory": args.pin,
        "persistent_workers": args.persistent,
        "collate_fn": COLLATE[args.collate],
    }
    if args.sampler == "bands":
        return DataLoader(images, batch_sampler=Bands(args.samples, args.batch_size), **options)
    if args.kind == "iterable":
        return DataLoader(Stream(images), batch_size=args.batch_size, drop_last=True, **options)
    return DataLoader(images, batch_size=args.batch_size, shuffle=True, drop_last=True, **options)


def make_model(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(4), nn.Flatten(), nn.LazyLinear(CLASSES))


def on(device: torch.device, batch: Any, how: str) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a batch on the device."""
    images, labels = (batch["image"], batch["label"]) if isinstance(batch, dict) else batch[:2]
    if how == "numpy":
        images = torch.from_numpy(images.numpy())
    images = images.to(device, non_blocking=True)
    images = images if images.is_floating_point() else images.float() / 255
    return images, labels.to(device, non_blocking=True)


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader[Any], device: torch.device) -> float:
    model.eval()
    losses = [nn.functional.cross_entropy(model(images), labels) for images, labels in map_on(device, loader)]
    model.train()
    return float(torch.stack(losses).mean())


def map_on(device: torch.device, loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    return (on(device, batch, "to") for batch in loader)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A training script with selectable parts.")
    parser.add_argument("--source", choices=("tensor", "float", "picture", "jpeg", "mask"), default="tensor")
    parser.add_argument("--images", type=int, default=256, help="number of distinct images in memory")
    parser.add_argument("--samples", type=int, default=1_000_000, help="length of an epoch")
    parser.add_argument("--side", type=int, default=256, help="side of a stored image")
    parser.add_argument("--size", type=int, default=224, help="side of a training image")
    parser.add_argument("--chain", choices=CHAINS, default="usual")
    parser.add_argument("--storage-ms", type=float, default=0.0, help="milliseconds to wait for a sample")
    parser.add_argument("--extra-kb", type=int, default=0, help="unused kilobytes in each sample")
    parser.add_argument("--batch", choices=("tuple", "dict"), default="tuple")
    parser.add_argument("--kind", choices=("map", "iterable"), default="map")
    parser.add_argument("--sampler", choices=("random", "bands"), default="random")
    parser.add_argument("--collate", choices=tuple(COLLATE), default="default")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--width", type=int, default=16, help="channels of the model")
    parser.add_argument("--depth", type=int, default=1, help="convolutions of the model")
    parser.add_argument("--how", choices=("to", "numpy"), default="to", help="copies a batch to the device")
    parser.add_argument("--stream", action="store_true", help="train on a separate stream")
    parser.add_argument("--validate-every", type=int, default=0, help="steps between validations")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    torch.backends.cudnn.deterministic = True  # so that the losses of two runs are comparable
    device = torch.device(args.device)
    loader = make_loader(args)
    held_out = argparse.Namespace(**{**vars(args), "samples": 4 * args.batch_size, "workers": 2, "persistent": True})
    validation = make_loader(held_out) if args.validate_every else None
    model = make_model(args.width, args.depth).to(device)
    model(torch.zeros(1, 3, args.size, args.size, device=device))  # the lazy last layer takes its shape here
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    if args.stream:
        own = torch.cuda.Stream()
        own.wait_stream(torch.cuda.default_stream())
        torch.cuda.set_stream(own)
    step, loss = 0, torch.zeros(())
    while step < args.steps:
        for batch in loader:
            images, labels = on(device, batch, args.how)
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if validation is not None and step % args.validate_every == 0:
                validate(model, validation, device)
            if step == args.steps:
                break
    print(f"{step} steps, loss {float(loss.detach()):.6f}")


if __name__ == "__main__":
    main()
