"""Define the parts of the measured loops: a training step, the plain loop, and repeated batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .published import Loop, Train
from .windows import Windows


@dataclass(frozen=True)
class Options:
    """The options of a part.

    Attributes:
        batches: batch sizes instead of the part's own.
        workers: numbers of workers instead of the part's own; a part that needs one number takes the first.
        feeds: sources of batches, in the parts with more than one.
        size: side of an image.
        device: device on which the loop trains.
        forms: names of the forms to measure; all if empty.
        windows: length of the measurement.
    """

    batches: tuple[int, ...]
    workers: tuple[int, ...]
    feeds: tuple[str, ...]
    size: int
    device: torch.device
    forms: tuple[str, ...]
    windows: Windows

    @property
    def on_gpu(self) -> bool:
        return bool(self.device.type == "cuda")

    def wants(self, form: str) -> bool:
        return not self.forms or form in self.forms


class Training:
    """A step of plain gradient descent."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        self._criterion = nn.CrossEntropyLoss()

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        self._optimizer.zero_grad()
        self._criterion(self._model(inputs), labels).backward()
        self._optimizer.step()


class Repeated:
    """The same few batches, endlessly, without a loader's work."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(self._batches)


def fetching(loader: Iterable[Any]) -> Loop:
    """Only fetch batches from the loader."""
    for _ in loader:
        yield


def trained(batches: Iterable[Any], train: Train) -> Loop:
    """Train on batches that are on the device."""
    for inputs, labels in batches:
        train(inputs, labels)
        yield


def pinned(batch: Sequence[Tensor], on_gpu: bool) -> list[Tensor]:
    """Return the batch in page-locked memory if there is a GPU to copy it to."""
    return [tensor.pin_memory() for tensor in batch] if on_gpu else list(batch)
