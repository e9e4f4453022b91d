"""Samples, transforms and datasets that tests share, and a comparison of samples."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import Dataset

from .clock import Clock


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclass
class Record:
    image: Any
    label: Any = 0


@dataclass(frozen=True)
class Frozen:
    image: Any
    label: Any = 0


@dataclass(slots=True)
class Slotted:
    image: Any
    label: Any = 0


class Sample:
    """A sample class of the user's, without any convention."""

    def __init__(self, image: Any, label: Any = 0) -> None:
        self.image = image
        self.label = label


class Encoding(UserDict[str, Any]):
    """Like a tokenizer's output: moves in place and returns itself."""

    def to(self, device: torch.device) -> Encoding:
        for key in self.data:
            self.data[key] = self.data[key].to(device)
        return self


class Graphs:
    """Like a batch of graphs: an object that is no mapping, and moves in place."""

    def __init__(self, x: torch.Tensor, edges: torch.Tensor) -> None:
        self.x, self.edges = x, edges

    def to(self, device: torch.device) -> Graphs:
        self.x, self.edges = self.x.to(device), self.edges.to(device)
        return self


class Bag(MutableMapping[str, Any]):
    """A mapping of the user's that keeps its items in a dict of its own."""

    def __init__(self, **items: Any) -> None:
        self.items_ = items

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Double:
    """A deterministic transform that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x * 2


class Shift(Double):
    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x + 1


class DoubleInPlace(Double):
    def __call__(self, x: Any) -> Any:
        self.calls += 1
        x *= 2
        return x


class Compose:
    """Home-made: parts in a list, a tuple or a dict, applied one after another."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def __call__(self, x: Any) -> Any:
        for part in self.parts.values() if isinstance(self.parts, dict) else self.parts:
            x = part(x)
        return x


class Items(Dataset[Any]):
    """A map-style dataset over functions of the index, counting what it is asked for."""

    def __init__(self, size: int = 64) -> None:
        self.size = size
        self.fetched: list[int] = []

    def raw(self, index: int) -> Any:
        self.fetched.append(index)
        return torch.full((2, 3), float(index))

    def __len__(self) -> int:
        return self.size


class Transformed(Items):
    """The common form: ``transform`` on the image, the label beside it."""

    def __init__(self, transform: Any = None, size: int = 64) -> None:
        super().__init__(size)
        self.transform = Double() if transform is None else transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.raw(index)), index


class Numbers(Dataset[torch.Tensor]):
    """A dataset whose items take ``seconds`` on a clock that only tests move, if there is one."""

    def __init__(self, clock: Clock | None = None, seconds: float = 0.01, length: int = 200) -> None:
        self.clock, self.seconds, self.length = clock, seconds, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.clock is not None:
            self.clock.seconds += self.seconds
        if index >= self.length:
            raise IndexError(f"no item {index}")
        return torch.full((3,), float(index))


def same(a: Any, b: Any, layout: bool = False) -> bool:
    """Equal in structure, types and values; with ``layout``, tensors also lie in memory alike."""
    if type(a) is not type(b):
        return False
    if a is b:
        return True
    each = partial(same, layout=layout)
    if isinstance(a, PackedSequence):
        return all(map(each, tuple(a), tuple(b)))
    if isinstance(a, torch.Tensor):
        facts = [(x.shape, x.dtype, x.device, x.layout, x.requires_grad, layout and _strides(x)) for x in (a, b)]
        if facts[0] != facts[1] or (type(a) is not torch.Tensor and not each(vars(a), vars(b))):
            return False
        a, b = (x.as_subclass(torch.Tensor) if x.layout == torch.strided else x.to_dense() for x in (a, b))
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, Image.Image):
        return (a.mode, a.size, a.tobytes()) == (b.mode, b.size, b.tobytes())
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(each, a, b))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(each(a[key], b[key]) for key in a)
    if dataclasses.is_dataclass(a):
        return all(each(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if type(a).__eq__ is object.__eq__ and hasattr(a, "__dict__"):
        return each(vars(a), vars(b))
    return bool(a == b)


def _strides(tensor: torch.Tensor) -> list[int]:
    """The strides that matter: that of a dimension of one element is arbitrary."""
    if tensor.layout != torch.strided or not tensor.numel():
        return []
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def ordered(**items: Any) -> OrderedDict[str, Any]:
    return OrderedDict(items)


def scene(size: int) -> Sample:
    """A sample whose parts refer to each other, and back to the whole."""
    whole = Sample([])
    for number in range(size):
        part = Sample(torch.full((2,), float(number)))
        part.label = whole
        whole.image.append(part)
    return whole
