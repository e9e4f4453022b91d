"""Published versions: the article's loops and batched transforms on CUDA streams, and kornia's on a stream.

The article's loops are as printed, including their errors: pageable memory, ``record_stream`` with the stream that made
a tensor instead of the one that reads it, a stage that does not wait for the copy of its input. Their results may
therefore be wrong; only their speed is measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch
import torchvision.transforms.v2 as T
import torchvision.transforms.v2.functional as F
from torch import Tensor, nn
from torchvision import ops

Batches = Iterable[Any]
Transform = Callable[[Tensor], Tensor]
#: A step of the training loop, given a batch on the device.
Train = Callable[[Tensor, Tensor], None]
Loop = Generator[None, None, None]


class BatchRandomCrop(T.Transform):  # type: ignore[misc]
    """Crop a square at a random place, drawn for each image."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self._side = side

    def transform(self, inpt: Tensor, params: dict[str, Any]) -> Tensor:
        count, _, height, width = inpt.shape
        made: dict[str, Any] = {"device": inpt.device, "dtype": torch.float32}
        top = torch.randint(0, height - self._side + 1, (count,), **made)
        left = torch.randint(0, width - self._side + 1, (count,), **made)
        boxes = [torch.arange(count, **made), left, top, left + self._side, top + self._side]
        return ops.roi_align(inpt, torch.stack(boxes, dim=1), output_size=self._side)


class BatchRandomRotation(T.Transform):  # type: ignore[misc]
    """Rotate by a random angle, drawn for each image, one image after the other."""

    def __init__(self, degrees: float) -> None:
        super().__init__()
        self._degrees = degrees

    def transform(self, inpt: Tensor, params: dict[str, Any]) -> Tensor:
        limit = self._degrees
        return torch.stack([F.rotate(image, angle=random.uniform(-limit, limit)) for image in inpt.unbind()])


def article_transforms(size: int) -> T.Compose:
    """Return the article's augmentations for a whole batch, with one blur for all its images."""
    return T.Compose(
        [
            T.ToDtype(torch.float32),
            BatchRandomCrop(size // 2),
            T.Resize(size),
            BatchRandomRotation(45.0),
            T.GaussianBlur(kernel_size=7),
            T.Normalize(mean=[0, 0, 0], std=[1, 1, 1]),
        ]
    )


def kornia_transforms(size: int) -> Transform:
    """Return the same with kornia, with random draws for each image."""
    import kornia.augmentation as K  # type: ignore[import-not-found]

    chain = nn.Sequential(
        K.RandomCrop((size // 2, size // 2)),
        K.Resize((size, size)),
        K.RandomRotation(45.0, p=1.0, resample="nearest"),
        K.RandomGaussianBlur((7, 7), (0.1, 2.0), p=1.0),
    )
    return lambda images: chain(images.float())


def article_offload(loader: Batches, device: torch.device, transform: Transform, train: Train) -> Loop:
    """Run the transforms on the device, before the step, on its stream."""
    for inputs, labels in loader:
        inputs = inputs.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True).squeeze()
        train(transform(inputs), labels)
        yield


def article_two_streams(loader: Batches, device: torch.device, transform: Transform, train: Train) -> Loop:
    """Run the step on one stream, and the transforms of the next batch on another."""
    transform_stream, model_stream = torch.cuda.Stream(), torch.cuda.Stream()
    transformed: Tensor | None = None
    labels = torch.empty(0)
    for inputs, labels_next in loader:
        if transformed is not None:
            with torch.cuda.stream(model_stream):
                labels = labels.to(device, non_blocking=True).squeeze()
                model_stream.wait_stream(transform_stream)
                train(transformed, labels)
        with torch.cuda.stream(transform_stream):
            inputs = inputs.to(device, non_blocking=True)
            transformed = transform(inputs)
            transformed.record_stream(transform_stream)
        labels = labels_next
        yield


def streamed(loader: Batches, device: torch.device, transform: Transform, train: Train) -> Loop:
    """Use two streams correctly: each reader waits for its input, and the allocator knows the readers."""
    side = torch.cuda.Stream()
    ready: tuple[Tensor, Tensor, torch.cuda.Event] | None = None
    for images, labels in loader:
        if ready is not None:
            transformed, targets, made = ready
            current = torch.cuda.current_stream()
            current.wait_event(made)
            transformed.record_stream(current)
            targets.record_stream(current)
            train(transformed, targets)
        with torch.cuda.stream(side):
            transformed = transform(images.to(device, non_blocking=True))
            targets = labels.to(device, non_blocking=True).squeeze(1)
            ready = transformed, targets, side.record_event()
        yield


def article_stage_streams(loader: Batches, device: torch.device, encoder: Transform, train: Train) -> Loop:
    """Run the decoder's step on one stream, and the encoder on the next batch on another.

    The code is as printed except for the labels, which get an event and ``record_stream``: labels that are read too
    early or were overwritten are invalid classes, and an invalid class ends the process on the device.
    """
    encoder_stream, decoder_stream = torch.cuda.Stream(), torch.cuda.Stream()
    features: Tensor | None = None
    labels, copied = torch.empty(0), torch.cuda.Event()
    for images, labels_on_host in loader:
        inputs = images.to(device, non_blocking=True).float()
        labels_next = labels_on_host.to(device, non_blocking=True)
        copied_next = torch.cuda.current_stream().record_event()
        if features is not None:
            with torch.cuda.stream(decoder_stream):
                decoder_stream.wait_stream(encoder_stream)
                decoder_stream.wait_event(copied)
                labels.record_stream(decoder_stream)
                train(features, labels)
        with torch.cuda.stream(encoder_stream):
            with torch.no_grad():
                features = encoder(inputs)
            features.record_stream(encoder_stream)
        labels, copied = labels_next, copied_next
        yield
