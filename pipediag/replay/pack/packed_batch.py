"""Carry a batch from a worker to the device: one block of memory, and the ops to apply to it.

The memory holds the original images, the numbers of all ops, drawn noise, row indices and the batch's other tensors. A
single copy transfers it, asynchronously if the memory is page-locked.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from ...usercode import tree
from ...usercode.objects import Content
from ..decode.decoding import Files, with_pixels
from ..layout import Strides
from ..ops.op import Shape
from ..record.views import Elsewhere
from .ring import Claim, Lease


class Section(NamedTuple):
    """Tensor inside the memory."""

    offset: int  # in bytes
    shape: Shape
    dtype: torch.dtype

    def of(self, memory: Tensor) -> Tensor:
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)


class Selection(NamedTuple):
    """Images of one group: all of them (None), a range of rows, or the rows listed in a section."""

    group: int
    rows: range | Section | None


class Launch(NamedTuple):
    """One step of the replay, ready for the device.

    For images of different sizes, read where they lie in the memory, ``takes`` is empty and ``numbers`` holds offsets.
    """

    name: str
    static: tuple[Any, ...]
    shape: Shape
    dtype: torch.dtype
    takes: tuple[Selection, ...]
    numbers: Section | None  # float64 (samples, numbers per sample); for a fused kernel in that kernel's layout
    bulk: Section | None
    group: int
    in_place: bool


class Source(NamedTuple):
    """Group of original images of one shape: ``(rows, C, H, W)``, or ``(rows, H, W, C)`` from Pillow images."""

    section: Section
    channels_last: bool

    def of(self, memory: Tensor) -> Tensor:
        """Return a view of the images as ``(rows, C, H, W)``."""
        images = self.section.of(memory)
        if self.channels_last:
            return images.permute(0, 3, 1, 2)
        return images.unsqueeze(1) if images.ndim == 3 else images  # masks of shape (H, W)


class Leaf:
    """Placeholder in the batch for a tensor: result ``number``, viewed as ``shape``, then mixed, laid out and wrapped.

    ``stride`` is given if the tensor is not contiguous, ``elsewhere`` in the loop's process, where other code may hold
    the recorded image too.
    It is no dataclass or named tuple, which tree functions would take for containers.
    """

    __slots__ = ("elsewhere", "mixes", "number", "shape", "stride", "wrap")

    def __init__(
        self,
        number: int,
        shape: Shape,
        mixes: Sequence[tuple[str, Any]],
        wrap: Callable[[Tensor], Tensor] | None,
        stride: Strides | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.elsewhere = elsewhere
        self.number = number
        self.shape = shape
        self.mixes = mixes
        self.stride = stride
        self.wrap = wrap


class Arranged:
    """Placeholder for a tensor that a call makes, by its name, of those whose placeholders its arguments hold.

    ``elsewhere`` is as in :class:`Leaf`. From a worker, the tensor is no view.
    """

    __slots__ = ("args", "elsewhere", "kwargs", "name")

    def __init__(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], elsewhere: Elsewhere | None = None
    ) -> None:
        self.name, self.args, self.kwargs, self.elsewhere = name, args, kwargs, elsewhere


class Object:
    """Placeholder for an object of the user's class, whose content holds placeholders.

    ``original`` is the object itself, as long as it is in the process that made it.
    """

    __slots__ = ("content", "original")

    def __init__(self, content: Content, original: Any = None) -> None:
        self.content = content
        self.original = original

    def filled(self, change: Callable[[Any], Any]) -> Any:
        """Return the object with each part of its content replaced by what ``change`` gives for it."""
        content = self.content.changed(change)
        return content.together() if self.original is None else content.into(self.original)

    def __reduce__(self) -> Any:
        return Object, (self.content,)


class Kept:
    """Placeholder for a part of the batch without recorded images that other code of this process may hold too."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Held:
    """Placeholder for such a list or dict with recorded images: ``parts`` are its placeholders by index or key."""

    __slots__ = ("original", "parts")

    def __init__(self, original: Any) -> None:
        self.original = original
        self.parts: dict[Any, Any] = {}

    def filled(self, change: Callable[[Any], Any], device: torch.device) -> Any:
        """Return the list or dict with what ``change`` gives for its parts; on another device than the CPU a copy."""
        made = self.original if device.type == "cpu" else copy.copy(self.original)
        for step, part in self.parts.items():
            made[step] = change(part)
        return made


class Plain:
    """Placeholder in the batch for a tensor that no op changes. ``stride`` is given if the tensor is not contiguous."""

    __slots__ = ("section", "stride")

    def __init__(self, section: Section, stride: Strides | None) -> None:
        self.section = section
        self.stride = stride

    def of(self, memory: Tensor) -> Tensor:
        tensor = self.section.of(memory)
        return tensor if self.stride is None else tensor.as_strided(self.section.shape, self.stride)


class Result(NamedTuple):
    """Images of one leaf: those of ``takes``, reordered by ``order`` unless it is None."""

    takes: tuple[Selection, ...]
    order: Section | None


@dataclass
class Packed:
    """One batch, which loaders can pin and send to another process.

    If its memory is a slot of a ring, it can be used once: the slot is returned as soon as the batch is on the device,
    or when the batch is discarded.
    """

    memory: Tensor  # uint8, 1-d
    sources: list[Source]  # empty if the images are on the device already
    launches: list[Launch]
    results: list[Result]
    batch: Any
    slot: Claim | Lease | None = None  # the memory's slot of a ring: a lease in the training process
    files: Files | None = None  # to be decoded

    def pin_memory(self, device: Any = None) -> Packed:
        """Return the batch in page-locked memory; a slot that is page-locked is not copied.

        Raises:
            UsageError: the batch has been released, or copied to a device.
        """
        slot = self._to_be_read()
        batch = tree.pinned(self.batch, device)
        if slot is not None and slot.page_locked:
            return replace(self, batch=batch)
        pinned = replace(self, memory=self.memory.pin_memory(), batch=batch, slot=None)
        self.release()
        return pinned

    def on_device(self, device: torch.device) -> Packed:
        """Return the batch with its memory on ``device`` and its JPEGs decoded. Values outside the memory stay.

        The copy and the decoding run on the current stream. The slot is returned when they are complete, without
        waiting here. On the CPU, a batch without JPEGs is returned itself and keeps its slot.

        Raises:
            UsageError: the batch has been released, or copied to a device.
        """
        slot = self._to_be_read()
        if self.files is not None:
            memory = with_pixels(self.memory, self.files, device)
        elif device.type == "cpu":
            return self
        else:
            memory = self.memory.to(device, non_blocking=device.type == "cuda")
        if slot is not None:
            if device.type == "cuda":
                slot.release_after(torch.cuda.current_stream(device).record_event())
            else:
                slot.release()
        return replace(self, memory=memory, slot=None, files=None)

    def decoded_on_cpu(self, device: torch.device) -> Packed:
        """Return the batch with its memory on ``device`` and its JPEGs decoded by the user's own decoder."""
        if self.files is None:
            return self
        return replace(self, memory=with_pixels(self.memory, self.files, device, on_cpu=True), files=None)

    def release(self) -> None:
        """Return the slot now. Neither a device nor other code may still read the memory."""
        if isinstance(self.slot, Lease):
            self.slot.release()

    def _to_be_read(self) -> Lease | None:
        """Return the slot in which the batch came, or None if it came in none.

        Raises:
            UsageError: the slot has been released.
        """
        if not isinstance(self.slot, Lease):
            return None
        if self.slot.ending:
            raise UsageError("this batch has been released, and its memory may hold another one: use a batch only once")
        return self.slot

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self.slot is not None:
            state["memory"] = None  # the memory belongs to the slot
        elif not self.memory.is_shared():
            state["memory"] = self.memory.numpy()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.slot is not None:
            self.memory = self.slot.memory
        elif isinstance(self.memory, np.ndarray):
            self.memory = torch.from_numpy(self.memory)
