"""Keep track of the memory that images share, and of what is written there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..decode.undecoded import is_undecoded
from ..layout import Strides, copied, laid
from ..storage import is_kept, place_of
from .call import Calls, made_by


class Memory:
    """What an image and views of it lie in, and what is written there.

    As long as no code has the real image, each writing is a recorded call. Once code has it, or a view of it, code may
    write there unseen: nothing more is recorded of an image in this memory, and all of them are views of the real one.

    Attributes:
        source: what its calls are made on, which nobody writes into.
        real: the real image; None if only calls made it, and no code needed it. It is a user's image from the start if
            the recording began with that.
        is_taken: True if code that got recorded images needed the real one.
        writings: the calls that wrote there, each with the calls that make what it wrote into from the whole.
        rows: the memory of the stack in which this is a row, if any.
    """

    __slots__ = ("__weakref__", "_calls", "_version", "is_taken", "real", "rows", "source", "writings")

    def __init__(self, source: Any, calls: Calls = (), given: Tensor | None = None) -> None:
        self.source, self._calls = source, calls
        self.real = given
        self._version = _version(given)
        self.is_taken = False
        self.writings: list[tuple[Calls, Callable[[Any], object]]] = []
        self.rows: Rows | None = None

    def is_as_it_was(self, writings: int) -> bool:
        """Return whether an image that includes this number of writings has the same pixels still, and is recorded."""
        if self.is_taken or writings != len(self.writings):
            return False
        if self.real is None or (self._version is not None and _version(self.real) == self._version):
            return True
        return _is_still(self.source, self.real)

    def image(self) -> Any:
        """Return the real image, into which code may write from now on."""
        if not self.is_taken and self.rows is not None:
            self.rows.image()
        if self.real is None:
            self.real = self.pixels()
        self.is_taken = True
        return self.real

    def becomes(self, image: Tensor) -> None:
        """Be that of a real image, which the loop got in place of the recorded one that fills it."""
        self.real, self.is_taken = image, True

    def pixels(self) -> Any:
        """Return the image that the recorded calls make."""
        image = made_by(self._calls, copied(self.source) if isinstance(self.source, Tensor) else self.source)
        for path, write in self.writings:
            write(made_by(path, image))
        return image


class Rows:
    """Memory of a stack of images, each of which lies in a row of it; ``strides`` returns those of the stack."""

    def __init__(self, memories: Sequence[Memory], real: Tensor | None, strides: Callable[[], Strides]) -> None:
        self._memories = [weakref.ref(memory) for memory in memories]
        self._real = real
        self._strides = strides
        for memory in memories:
            memory.rows = self

    def image(self) -> Tensor:
        """Return the real stack, into which code may write from now on."""
        alive = [(k, memory) for k, ref in enumerate(self._memories) if (memory := ref()) is not None]
        if self._real is None:
            rows = {k: memory.pixels().as_subclass(Tensor) for k, memory in alive}
            none = torch.zeros_like(next(iter(rows.values())))  # nothing holds the others any more
            # A function may lay out the stack otherwise than each image by itself.
            self._real = laid(torch.stack([rows.get(k, none) for k in range(len(self._memories))]), self._strides())
            for k, memory in alive:
                memory.real = self._real[k]
        for _, memory in alive:
            memory.is_taken = True
        return self._real

    def becomes(self, image: Tensor) -> None:
        """Be that of a real stack, as :meth:`Memory.becomes`."""
        self._real = image
        for row, ref in zip(image, self._memories, strict=True):
            if (memory := ref()) is not None:
                memory.becomes(row)

    def is_filled_by(self, memories: Sequence[Memory | None]) -> bool:
        return [ref() for ref in self._memories] == [*memories]

    @staticmethod
    def lay(memories: Sequence[Memory | None], strides: Callable[[], Strides]) -> None:
        """Note the strides of the stack whose rows these are, if they are, and it is not real yet."""
        rows = memories[0].rows if memories[0] is not None else None
        if rows is not None and rows._real is None and rows.is_filled_by(memories):
            rows._strides = strides

    @staticmethod
    def of(memories: Sequence[Memory | None]) -> Tensor | None:
        """Return the real stack whose rows these are, or the part of it; None if they are no such rows."""
        rows = memories[0].rows if memories[0] is not None else None
        if rows is None or any(one is None or one.rows is not rows for one in memories):
            return None
        known = {ref(): k for k, ref in enumerate(rows._memories)}
        numbers = [known[one] for one in memories if one is not None]
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
        if step < 1 or numbers != [*range(numbers[0], numbers[-1] + 1, step)]:
            return None
        whole = rows.image()
        return whole if numbers == [*range(len(whole))] else whole[numbers[0] : numbers[-1] + 1 : step]


def _version(image: Any) -> int | None:
    """Return what differs once a tensor was written into; None if nothing shows that, or for what is no tensor."""
    if not isinstance(image, Tensor):
        return None
    if is_undecoded(image) or is_kept(image):
        return _KEPT
    with torch._C.DisableTorchFunctionSubclass():
        # torch lets nobody resize memory that an array shares.
        counts = not image.is_inference() and image.untyped_storage().resizable()
        return image._version if counts else None


_KEPT = -1


def _is_still(copy: Tensor, image: Tensor) -> bool:
    """Return whether an image has the pixels that it had when it was copied."""
    with torch._C.DisableTorchFunction():
        if (copy.shape, copy.dtype) != (image.shape, image.dtype):
            return False
        return torch.equal(copy, image) or bool(((copy == image) | (copy.isnan() & image.isnan())).all())


def shares_memory(image: Any, whole: Any) -> bool:
    return place_of(image)[0] == place_of(whole)[0]
