"""A batch on its way from a worker to the device: one piece of memory, and what is to be done with it.

The memory holds untouched images, the numbers of all ops, drawn noise, row indices and the batch's other tensors side
by side, so that one copy brings all of it to the device, asynchronously where its pages are locked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory

from ..errors import UsageError
from .ops import Shape
from .ring import Claim, Lease


class Section(NamedTuple):
    """A tensor inside the memory."""

    offset: int  # in bytes
    shape: Shape
    dtype: torch.dtype

    def of(self, memory: Tensor) -> Tensor:
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)


class Selection(NamedTuple):
    """Images of one group: all (None), a stretch, or those whose rows a section holds."""

    group: int
    rows: range | Section | None


class Launch(NamedTuple):
    """One step of the replay, ready for the device.

    ``takes`` is empty where the images are of different sizes and lie in the memory as they came: then ``numbers``
    says where.
    """

    name: str
    static: tuple[Any, ...]
    shape: Shape
    dtype: torch.dtype
    takes: tuple[Selection, ...]
    numbers: Section | None  # (samples, numbers of each), float64; as the kernel wants them for a fused one
    bulk: Section | None
    group: int
    in_place: bool


class Source(NamedTuple):
    """A group of untouched images of one shape: ``(rows, C, H, W)``, or ``(rows, H, W, C)`` from pictures."""

    section: Section
    channels_last: bool


class Leaf:
    """Stands in the batch where a tensor will be: result ``number``, viewed as ``shape``, then mixed and wrapped.

    No dataclass or named tuple: those count as containers of a batch, and are walked into.
    """

    __slots__ = ("mixes", "number", "shape", "wrap")

    def __init__(
        self, number: int, shape: Shape, mixes: Sequence[tuple[str, Any]], wrap: Callable[[Tensor], Tensor] | None
    ) -> None:
        self.number = number
        self.shape = shape
        self.mixes = mixes
        self.wrap = wrap


class Plain:
    """Stands in the batch where a tensor will be that nothing is done with. ``stride``: where it is not contiguous."""

    __slots__ = ("section", "stride")

    def __init__(self, section: Section, stride: tuple[int, ...] | None) -> None:
        self.section = section
        self.stride = stride

    def of(self, memory: Tensor) -> Tensor:
        tensor = self.section.of(memory)
        return tensor if self.stride is None else tensor.as_strided(self.section.shape, self.stride)


class Result(NamedTuple):
    """The images of one leaf: those of ``takes``, brought into ``order`` where they are not."""

    takes: tuple[Selection, ...]
    order: Section | None


@dataclass
class Packed:
    """Everything of one batch. What loaders do with a batch (pinning, moving between processes) works on it.

    Where its memory is a slot of a ring, it is used once: the slot is given back as soon as the batch is on the device,
    or when the batch is thrown away.
    """

    memory: Tensor  # uint8, 1-d
    sources: list[Source]  # none where the images are on the device already
    launches: list[Launch]
    results: list[Result]
    batch: Any
    slot: Claim | Lease | None = None  # where the memory is one of a ring: in a worker, in the training process

    def pin_memory(self, device: Any = None) -> Packed:
        """As the loader's pinning thread asks for it. A slot that is page-locked stays where it is.

        Raises:
            UsageError: the batch has been released, or copied to a device.
        """
        slot = self._to_be_read()
        batch = pin_memory(self.batch, device)
        if slot is not None and slot.page_locked:
            return replace(self, batch=batch)
        pinned = replace(self, memory=self.memory.pin_memory(), batch=batch, slot=None)
        self.release()
        return pinned

    def on_device(self, device: torch.device) -> Packed:
        """The batch with its memory on ``device``; for the CPU itself. The copy runs on the current stream.

        The slot is given back when the copy is complete, for which nothing waits here. What does not lie in the memory
        stays where it is.

        Raises:
            UsageError: the batch has been released, or copied to a device.
        """
        slot = self._to_be_read()
        if device.type == "cpu":
            return self
        memory = self.memory.to(device, non_blocking=device.type == "cuda")
        if slot is not None:
            if device.type == "cuda":
                slot.release_after(torch.cuda.current_stream(device).record_event())
            else:
                slot.release()
        return replace(self, memory=memory, slot=None)

    def release(self) -> None:
        """Give the slot back, now: nobody, no device either, reads the memory any more."""
        if isinstance(self.slot, Lease):
            self.slot.release()

    def _to_be_read(self) -> Lease | None:
        """The slot, if the batch has come in one, which may still be read."""
        if not isinstance(self.slot, Lease):
            return None
        if self.slot.ending:
            raise UsageError("this batch has been released, and its memory may hold another one: use it once, before")
        return self.slot

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self.slot is not None:
            state["memory"] = None  # it is the slot's
        elif not self.memory.is_shared():
            state["memory"] = self.memory.numpy()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.slot is not None:
            self.memory = self.slot.memory
        elif isinstance(self.memory, np.ndarray):
            self.memory = torch.from_numpy(self.memory)
