"""Record what only rearranges the pixels of images: permuting, reshaping, slicing, joining them.

A :class:`RecordingView` stands for the result. It holds the call with recording images among its arguments, and the
device makes the same call on their pixels. A function of images that is called on it is recorded for the crops that it
consists of, if it is made of such.
"""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torchvision.transforms.v2 import functional as F

from ..layout import Strides, laid_out
from ..ops.calls import ELEMENTWISE, arranged
from ..ops.op import NotRecordable, State
from .images import (
    RecordingStack,
    Unreadable,
    blank,
    form_of,
    needs_pixels,
    or_real,
    real,
)
from .memory import Memory, Rows
from .session import session
from .strides import Layout
from .tape import Tape, not_recorded

#: Calls whose result shares no memory with their images.
_COPYING = frozenset(
    {"cat", "stack", "pad", "flip", "rot90", "roll", "repeat", "tile", "clone", "to", "pad_sequence", "put", "written",
     "amax", "amin", *ELEMENTWISE}
)  # fmt: skip
#: Calls whose result has other values than its images.
_CHANGING = frozenset({"to", "put", "amax", "amin", *ELEMENTWISE})


class RecordingView(Unreadable, Tensor):  # type: ignore[misc]
    """Result of a call that rearranges the pixels of recording images."""

    stands_for = Tensor
    #: Its name, arguments and keyword arguments. They hold the images as they were then.
    call: tuple[str, tuple[Any, ...], dict[str, Any]]
    like: Tensor  # a tensor without memory of its shape, dtype and strides
    images: Any  # the same pixels as images, once a function of images was called on it
    made: list[Tensor]  # holds the real tensor once code needed its pixels, for all views of the same memory
    #: The image that stood in its place before a writing, with the memory that it lies in; None if there is none.
    lay: Tape | None
    is_alone: bool  # whether no other image was made in its memory since

    @property
    def memory_layout(self) -> Layout:  # type: ignore[override]
        return Layout(tuple(self.like.shape), self.like.dtype, tuple(self.like.stride()))

    @staticmethod
    def of_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordingView:
        """Record a call.

        Raises:
            NotRecordable: one of its images has been mixed, or the shape of the result depends on pixels.
        """
        if not of_plain_code():
            raise NotRecordable(needs_pixels(name))
        if name == "view" and any(isinstance(arg, torch.dtype) for arg in (*args, *kwargs.values())):
            raise NotRecordable(needs_pixels(name))
        args, kwargs = tree_map_only(Tensor, apart if name in _COPYING else as_it_is, (args, kwargs))
        try:
            with torch._C.DisableTorchFunction():
                like = arranged(name, *tree_map_only(Tensor, without_memory, (args, kwargs)))
        except Exception as error:  # if it is the user's own, the call on the pixels raises it too
            raise NotRecordable(needs_pixels(name)) from error
        return RecordingView.of_result(like, name, args, kwargs)

    @staticmethod
    def of_result(like: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordingView:
        view = blank(RecordingView)
        view.tape = Tape(None, State(tuple(like.shape), like.dtype))
        view.call, view.like, view.images, view.made, view.lay = (name, args, kwargs), like, None, [], None
        view.is_alone = name in _COPYING
        return view  # type: ignore[no-any-return]

    @property
    def consists_of(self) -> Any:
        """Its images if they are known; otherwise the call."""
        return self.call if self.images is None else self.images

    def singles(self) -> Iterator[Any]:
        for image in tree_leaves(self.consists_of):
            if isinstance(image, Unreadable):
                yield from image.singles()

    def lies_in(self, image: Any) -> None:
        """Note that this is written into an image, or a view, whose place it takes."""
        lay = image.lay if isinstance(image, RecordingView) else image.tape
        if lay is not None:
            self.lay = lay.written(lay.copy(), lambda real: real.copy_(self._computed()))

    @property
    def is_recorded(self) -> bool:
        """False if it stands for a real tensor, or another image was written into that shares its memory."""
        return not self.made and (self.lay is None or self.lay.is_recorded)

    def check(self) -> None:
        """Check that it is what its call makes.

        Raises:
            NotRecordable: it is not.
        """
        if not self.is_recorded:
            raise not_recorded(bool(self.made))

    def pixels(self) -> Tensor:
        if not self.made:
            with session.idle():
                self.made.append(self._computed() if self.lay is None else self.lay.pixels())
        return self.made[0]

    def _computed(self) -> Tensor:
        name, args, kwargs = self.call
        pixels = lambda image: image.pixels().as_subclass(Tensor)  # noqa: E731
        return arranged(name, *tree_map_only(Unreadable, pixels, (args, kwargs)))

    def settled(self) -> Tensor:
        """Return the real tensor, which this one stands for from now on."""
        if not self.made:
            for image in self.singles():
                image.tape.is_needed()
        return real(self)

    @property
    def is_settled(self) -> bool:
        return bool(self.made)

    def becomes(self, image: Tensor) -> None:
        self.made[:] = [image]

    def strides(self) -> Strides:
        return tuple(self.like.stride())

    def apart(self) -> Any:
        return self._again(apart)

    def as_it_is(self) -> Any:
        self.is_alone = False
        view = self._again(as_it_is)
        if isinstance(view, RecordingView):
            view.made, view.lay, view.is_alone = self.made, self.lay, False
        return view

    def _again(self, again: Callable[[Any], Any]) -> Any:
        """Return what stands for the same pixels, of images that ``again`` makes of these."""
        self.check()
        if self.images is not None:
            return again(self.images)
        return RecordingView.of_result(self.like, self.call[0], *tree_map_only(Unreadable, again, self.call[1:]))

    def standing_for(self, image: Tensor) -> Any:
        view = RecordingView.of_result(self.like, *self.call)
        view.made.append(image)
        return view

    def as_images(self) -> Any:
        self.check()
        if self.images is None:
            self.images = _crops(self)
        return self.images

    def typed(self, cls: type) -> Any:
        return self if cls is Tensor else self.as_images().typed(cls)

    def cpu(self, *_: Any, **__: Any) -> Any:
        return self

    @or_real
    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Convert it to a dtype as images, if it consists of such; otherwise the device makes the same call."""
        only = (*args, *kwargs.values())
        alone = len(only) == 1 and isinstance(only[0], torch.dtype) and self.is_recorded
        if alone and of_plain_code() and boxes_of(self) is None:
            if only[0] == self.dtype:
                return self
            return RecordingView.of_call("to", (self, *only), {})
        return super().to(*args, **kwargs)

    @or_real
    def contiguous(self, *args: Any, **kwargs: Any) -> Any:
        return RecordingView.of_call("contiguous", (self, *args), kwargs)


def of_plain_code() -> bool:
    """Return whether plain code is recorded. Of a transform's own links only arithmetic with numbers is."""
    return session.calls is not None and session.dictation is None


def as_it_is(image: Any) -> Any:
    """Return an image with the same pixels, which stays as it is if the image is written into; also a real tensor."""
    if isinstance(image, Unreadable):
        return image.as_it_is()
    if type(image) is not Tensor or image.requires_grad or not image.is_cpu or image.layout != torch.strided:
        raise NotRecordable("images are joined with a tensor that has a gradient, or is no usual one")
    return image.clone()


def apart(image: Any) -> Any:
    """Return the same without shared memory."""
    return image.apart() if isinstance(image, Unreadable) else as_it_is(image)


def without_memory(image: Any) -> Tensor:
    return image.like if isinstance(image, RecordingView) else form_of(image, "meta")


def region_of(image: Any) -> Tensor | None:
    """Return a tensor without memory that lies where the image lies in its memories; None if that is unknown."""
    return without_memory(image) if all(one.tape.is_whole for one in image.singles()) else None


def memories_of(image: Any) -> list[Any]:
    """Return what identifies the memories that a recording image may share with other images."""
    if isinstance(image, RecordingView):
        if image.call[0] in _COPYING:
            return [] if image.is_alone else [image.made]
        return [one for arg in tree_leaves(image.call[1:]) if isinstance(arg, Unreadable) for one in memories_of(arg)]
    if isinstance(image, RecordingStack):
        return [] if image.mixes else [one for part in image.parts for one in memories_of(part)]
    return [] if image.tape.memory is None else [image.tape.memory]


class Elsewhere:
    """Finds what other code of this process holds of an image of a batch: itself, or others in its memory.

    It keeps none of that alive.
    """

    def __init__(self, image: Any) -> None:
        filled = _filled(image)
        self._held = [weakref.ref(one) for one in (image, filled) if one is not None]

    def becomes(self, made: Tensor) -> None:
        """Let it stand for the real image that the loop gets."""
        for ref in self._held:
            if (held := ref()) is not None:
                held.becomes(made)


def _filled(image: Any) -> Memory | Rows | None:
    """Return the memory that an image or a stack fills; None if it is the user's, or no other lies there."""
    if isinstance(image, RecordingView) or image.mixes:
        return None
    if not isinstance(image, RecordingStack):
        memory: Memory | None = image.tape.memory if image.tape.is_whole else None
        return None if memory is None or memory.real is not None else memory
    memories = [part.tape.memory for part in image.parts]
    rows: Rows | None = None if memories[0] is None else memories[0].rows
    return rows if rows is not None and rows.is_filled_by(memories) else None


def simplified(image: Any) -> Any:
    """Return a recording image or a stack of such, a real tensor, or else the name and the arguments of the call that
    makes the same of such."""
    if isinstance(image, RecordingView):
        if image.made:
            return image.settled()
        image.check()
        if image.images is not None:
            return simplified(image.images)
        name, args, kwargs = image.call
        is_plain = name == "stack" and len(args) == 2 and args[1] == 0 and not kwargs
        return (_at_once(args[0]) if is_plain else None) or image.call
    if not holds_view(image):
        return image
    if image.mixes:
        raise NotRecordable("a batch of rearranged images is mixed")
    return _at_once(image.parts) or ("stack", (image.parts,), {})


def _at_once(parts: list[Any]) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
    """Return one call that makes the stack of what one computing call each makes of images; None if they differ."""
    if not all(isinstance(part, RecordingView) and part.images is None and part.is_recorded for part in parts):
        return None
    name, first, _ = parts[0].call
    alike = all(part.call[0] == name and len(part.call[1]) == len(first) and not part.call[2] for part in parts)
    if not alike or name not in {"to", *ELEMENTWISE}:
        return None
    together = [_together([part.call[1][k] for part in parts]) for k in range(len(first))]
    dimensions = {one.ndim for one in together if isinstance(one, Tensor)}
    if len(dimensions) != 1 or any(one is _DIFFERS for one in together):
        return None
    return name, tuple(together), {}


_DIFFERS = object()


def _together(given: list[Any]) -> Any:
    """Return the same argument of several calls for all of them at once, or that they differ."""
    first = given[0]
    if not isinstance(first, Tensor):
        return first if all(type(one) is type(first) and one == first for one in given) else _DIFFERS
    recorded = isinstance(first, Unreadable)
    alike = (isinstance(one, Tensor) and isinstance(one, Unreadable) == recorded for one in given)
    if not all(alike) or len({(tuple(one.shape), one.dtype) for one in given}) > 1:
        return _DIFFERS
    if any(getattr(one, "mixes", ()) for one in given):
        return _DIFFERS
    return RecordingStack.made_of(given) if recorded else torch.stack(given)


def is_of_images(value: Any) -> bool:
    """Return whether a recording image consists of images."""
    return not (isinstance(value, RecordingView) and boxes_of(value) is None) and not holds_view(value)


def holds_view(image: Any) -> bool:
    return isinstance(image, RecordingStack) and any(
        isinstance(part, RecordingView) or holds_view(part) for part in image.parts
    )


# ---- views as images

Box = tuple[int, int, int, int]  # top, left, height, width
Boxes = list[tuple[int, Box]]  # with the number of an image
_KNOWN: dict[str, Boxes | None] = {}
#: Maximum number of known arrangements.
_MOST = 512


def _crops(view: RecordingView) -> Any:
    """Return the images that a view consists of, in stacks of its shape.

    Raises:
        NotRecordable: it is made of something else.
    """
    boxes = boxes_of(view)
    if boxes is None:
        raise NotRecordable(needs_pixels(view.call[0]))
    images = [base.plain().recorded("crop", F.crop, box, {}) for base, box in boxes]
    for dim in reversed(view.shape[:-3]):
        images = [RecordingStack.made_of(images[k : k + dim]) for k in range(0, len(images), dim)]
    return laid(images[0], view.strides())


def boxes_of(view: RecordingView) -> list[tuple[Any, Box]] | None:
    """Return the image and the box of each crop that a view consists of; None if it is made of something else."""
    if not _of_images_only(view):
        return None
    bases = list(view.singles())
    key = f"{_spelled(view)} of {[tuple(base.shape) for base in bases]}"
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        _KNOWN[key] = _boxes(view, bases)
    boxes = _KNOWN[key]
    return None if boxes is None else [(bases[base], box) for base, box in boxes]


def laid(image: Any, strides: Strides) -> Any:
    """Return an image, or a stack of images, that has these strides without the remedy."""
    if image.strides() == strides:
        return image
    if isinstance(image, RecordingView):
        made = RecordingView.of_call("contiguous", (image,), {})
        if made.strides() != strides:
            raise NotRecordable(needs_pixels("__getitem__"))
        return made
    if isinstance(image, RecordingStack):
        return image.as_it_is().laid(strides)
    return image.of(image.tape.laid(laid_out, (strides,)))


def _of_images_only(value: Any) -> bool:
    if isinstance(value, RecordingView):
        changed = value.images is None and value.call[0] in _CHANGING
        return not changed and all(map(_of_images_only, tree_leaves(value.consists_of)))
    return isinstance(value, Unreadable) or not isinstance(value, Tensor)


def _spelled(value: Any) -> str:
    """Return how a view is made, for equal ones the same."""
    if isinstance(value, RecordingView):
        return _spelled(value.consists_of)
    if isinstance(value, RecordingStack):
        return f"stack{_spelled(value.parts)}"
    if isinstance(value, Unreadable):
        return str(tuple(value.shape))
    return f"({', '.join(map(_spelled, value))})" if isinstance(value, (tuple, list)) else repr(value)


def _boxes(view: RecordingView, bases: list[Any]) -> Boxes | None:
    """Return the image's number and the box of each crop; None if the view is made of others."""
    if view.ndim < 3 or any(base.ndim != 3 for base in bases):
        return None
    begins = list(accumulate((base.numel() for base in bases), initial=0))
    numbered = {
        id(base): torch.arange(begin, end, dtype=torch.int32, device="cpu").view(base.shape)
        for base, begin, end in zip(bases, begins, begins[1:], strict=False)
    }
    with torch._C.DisableTorchFunction():
        numbers = _numbered(view, numbered)
    positions = torch.arange(numbers.untyped_storage().nbytes() // numbers.element_size(), device="cpu")
    if positions.as_strided(numbers.shape, numbers.stride(), numbers.storage_offset()).unique().numel() < view.numel():
        return None  # its elements share memory, so that writing is another call
    boxes: Boxes = []
    for crop in numbers.reshape(-1, *view.shape[-3:]):
        first = int(crop[0, 0, 0])
        base = bisect.bisect_right(begins, first) - 1
        channels, _, width = bases[base].shape
        top, left = divmod((first - begins[base]), width)
        there = numbered[id(bases[base])][:, top : top + crop.shape[1], left : left + crop.shape[2]]
        if channels != len(crop) or there.shape != crop.shape or not torch.equal(there, crop):
            return None
        boxes.append((base, (top, left, crop.shape[1], crop.shape[2])))
    return boxes


def _numbered(image: Any, numbered: dict[int, Tensor]) -> Tensor:
    """Return the number of each pixel in place of its value."""
    if isinstance(image, RecordingStack):
        return torch.stack([_numbered(part, numbered) for part in image.parts])
    if not isinstance(image, RecordingView):
        return numbered[id(image)]
    if image.images is not None:
        return _numbered(image.images, numbered)
    name, args, kwargs = image.call
    within = lambda one: _numbered(one, numbered)  # noqa: E731
    return arranged(name, *tree_map_only(Unreadable, within, (args, kwargs)))
