"""Record what only rearranges the pixels of images: permuting, reshaping, slicing, joining them.

A :class:`RecordingView` stands for the result. It holds the call with recording images among its arguments, and the
device makes the same call on their pixels. A function of images that is called on it is recorded for the crops that it
consists of, if it is made of such.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torchvision.transforms.v2 import functional as F

from ..layout import Strides, contiguous, laid_out
from ..ops.arrangement import arranged
from ..ops.elementwise import ELEMENTWISE
from ..ops.op import NotRecordable, State
from .images import (
    ANSWERS,
    RecordingStack,
    RecordingTensor,
    Unreadable,
    blank,
    box_of,
    form_of,
    needs_pixels,
    real,
    record_any,
    stacked,
)
from .strides import Layout
from .tape import Tape, session

#: Calls whose result shares no memory with their images.
_COPYING = frozenset(
    {"cat", "stack", "pad", "flip", "rot90", "roll", "repeat", "tile", "clone", "to", "pad_sequence", "put", "written",
     "amax", "amin", *ELEMENTWISE}
)  # fmt: skip


#: Calls whose result has other values than its images.
_CHANGING = frozenset({"to", "put", "amax", "amin", *ELEMENTWISE})


class RecordingView(Unreadable, Tensor):  # type: ignore[misc]
    """Result of a call that rearranges the pixels of recording images.

    Attributes:
        call: its name, arguments and keyword arguments. They hold the images as they were then.
        like: a tensor without memory of its shape, dtype and strides.
        images: the same pixels as images, once a function of images was called on it.
        made: the real tensor, once code needed its pixels.
        is_alone: whether it shares its memory with nothing.
    """

    stands_for = Tensor
    call: tuple[str, tuple[Any, ...], dict[str, Any]]
    like: Tensor
    images: Any
    made: Tensor | None
    is_alone: bool

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
                like = arranged(name, *tree_map_only(Tensor, _without_memory, (args, kwargs)))
        except Exception as error:  # if it is the user's own, the call on the pixels raises it too
            raise NotRecordable(needs_pixels(name)) from error
        return RecordingView.of_result(like, name, args, kwargs)

    @staticmethod
    def of_result(like: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordingView:
        view = blank(RecordingView)
        view.tape = Tape(None, State(tuple(like.shape), like.dtype))
        view.call, view.like, view.images, view.made = (name, args, kwargs), like, None, None
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

    def pixels(self) -> Tensor:
        if self.made is not None:
            return self.made
        if self.images is not None:
            return self.images.pixels()
        name, args, kwargs = self.call
        pixels = lambda image: image.pixels().as_subclass(Tensor)  # noqa: E731
        return arranged(name, *tree_map_only(Unreadable, pixels, (args, kwargs)))

    def settled(self) -> Tensor:
        """Return the real tensor, which this one stands for from now on even if it is written into."""
        if self.made is None:
            for image in self.singles():
                image.tape.is_needed()
            self.made = real(self)
            for image in self.singles():
                image.tape.lend(self.made)
        return self.made

    def strides(self) -> Strides:
        return tuple(self.like.stride())

    def apart(self) -> Any:
        return self._again(apart)

    def as_it_is(self) -> Any:
        self.is_alone = False
        return self._again(as_it_is)

    def _again(self, again: Callable[[Any], Any]) -> Any:
        """Return what stands for the same pixels, of images that ``again`` makes of these."""
        if self.made is not None:
            raise NotRecordable(session.why)
        if self.images is not None:
            return again(self.images)
        return RecordingView.of_result(self.like, self.call[0], *tree_map_only(Unreadable, again, self.call[1:]))

    def standing_for(self, image: Tensor) -> Any:
        view = RecordingView.of_result(self.like, *self.call)
        view.made = image
        return view

    def as_images(self) -> Any:
        if self.made is not None:
            raise NotRecordable(session.why)
        if self.images is None:
            self.images = _crops(self)
        return self.images

    def as_subclass(self, cls: type) -> Any:
        if not session.active:
            return super().as_subclass(cls)
        return self if cls is Tensor else self.images_or_pixels().as_subclass(cls)

    def cpu(self, *_: Any, **__: Any) -> Any:
        return self

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Convert it to a dtype as images, if it consists of such; otherwise the device makes the same call."""
        only = (*args, *kwargs.values())
        alone = len(only) == 1 and isinstance(only[0], torch.dtype) and self.made is None
        if alone and of_plain_code() and _boxes_of(self) is None:
            if only[0] == self.dtype:
                return self
            return RecordingView.of_call("to", (self, *only), {})
        return super().to(*args, **kwargs)

    def contiguous(self, *args: Any, **kwargs: Any) -> Any:
        if self.made is not None:
            return self.made.contiguous(*args, **kwargs)
        return RecordingView.of_call("contiguous", (self, *args), kwargs)


def of_plain_code() -> bool:
    """Return whether plain code is recorded. A transform's own link stays code of the user's, proven as a whole."""
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


def _without_memory(image: Any) -> Tensor:
    return image.like if isinstance(image, RecordingView) else form_of(image, "meta")


def simplified(image: Any) -> Any:
    """Return a recording image or a stack of such, a real tensor, or else the name and the arguments of the call that
    makes the same of such."""
    if isinstance(image, RecordingView):
        if image.made is not None:
            return image.made
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
    if not all(isinstance(part, RecordingView) and part.images is None and part.made is None for part in parts):
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


def holds_view(image: Any) -> bool:
    return isinstance(image, RecordingStack) and any(
        isinstance(part, RecordingView) or holds_view(part) for part in image.parts
    )


# ---- views as images

Boxes = list[tuple[int, tuple[int, int, int, int]]]
_KNOWN: dict[str, Boxes | None] = {}
#: Maximum number of known arrangements.
_MOST = 512


def _crops(view: RecordingView) -> Any:
    """Return the images that a view consists of, in stacks of its shape.

    Raises:
        NotRecordable: it is made of something else.
    """
    boxes, bases = _boxes_of(view), list(view.singles())
    if boxes is None:
        raise NotRecordable(needs_pixels(view.call[0]))
    images = [record_any(plain(bases[base]), "crop", F.crop, box, {}) for base, box in boxes]
    for dim in reversed(view.shape[:-3]):
        images = [RecordingStack.made_of(images[k : k + dim]) for k in range(0, len(images), dim)]
    return _laid(images[0], view.strides())


def _boxes_of(view: RecordingView) -> Boxes | None:
    """Return the image and the box of each crop that a view consists of; None if it is made of something else."""
    if not _of_images_only(view):
        return None
    bases = list(view.singles())
    key = f"{_spelled(view)} of {[tuple(base.shape) for base in bases]}"
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        _KNOWN[key] = _boxes(view, bases)
    return _KNOWN[key]


def _laid(image: Any, strides: Strides) -> Any:
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
    return image.of(image.tape.then([], laid_out, (strides,)))


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
    """Return the image and the box (top, left, height, width) of each crop; None if the view is made of others."""
    if view.ndim < 3 or any(base.ndim != 3 for base in bases):
        return None
    begins = list(accumulate((base.numel() for base in bases), initial=0))
    numbered = {id(base): torch.arange(begin, end, dtype=torch.int32).view(base.shape) for base, begin, end in
                zip(bases, begins, begins[1:], strict=False)}  # fmt: skip
    with torch._C.DisableTorchFunction():
        numbers = _numbered(view, numbered)
    positions = torch.arange(numbers.untyped_storage().nbytes() // numbers.element_size())
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


# ---- answers


def _viewed(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: RecordingView.of_call(name, args, kwargs)


def plain(image: Any) -> Any:
    """Return the image as a plain tensor, as most methods of tensors do."""
    return image if type(image) in (RecordingTensor, RecordingStack) else image.as_subclass(Tensor)


def _indexed(image: Any, index: Any) -> Any:
    """Record ``image[index]``: an image of a stack, a crop, or another part."""
    if isinstance(image, RecordingView) and image.images is not None:
        return _indexed(image.images, index)
    if isinstance(image, RecordingStack) and not image.mixes and isinstance(index, (int, slice)):
        return _picked(image, index)
    if isinstance(image, RecordingStack) and not image.mixes and _is_order(index):
        if image.strides() != contiguous(tuple(image.shape)):
            raise NotRecordable(needs_pixels("__getitem__"))
        return RecordingStack.made_of([image.parts[k].apart() for k in index.tolist()])
    box = None if not of_plain_code() or isinstance(image, RecordingView) else box_of(index, tuple(image.shape))
    if box is not None:
        return record_any(plain(image), "crop", F.crop, box, {})
    if index is None:
        return _unsqueezed(image, 0)
    return RecordingView.of_call("__getitem__", (image, index), {})


def _is_order(index: Any) -> bool:
    """Return whether an index selects images of a stack by their numbers, as a permutation does."""
    return type(index) is Tensor and index.ndim == 1 and index.dtype is torch.int64 and index.numel() > 0


def is_of_images(value: Any) -> bool:
    """Return whether a recording image consists of images."""
    return not (isinstance(value, RecordingView) and _boxes_of(value) is None) and not holds_view(value)


def _picked(stack: Any, index: int | slice) -> Any:
    """Return an image of a stack, or a stack of some of its images."""
    strides = stack.strides()
    if isinstance(index, slice):
        parts, step = stack.parts[index], index.indices(len(stack))[2]
        if not parts or step < 1:
            raise NotRecordable(needs_pixels("__getitem__"))
        return RecordingStack.made_of(parts).laid((strides[0] * step, *strides[1:]))
    stack.parts[index] = _laid(stack.parts[index], strides[1:])
    return plain(stack.parts[index])


def _unsqueezed(image: Any, dim: int) -> Any:
    if not of_plain_code() or isinstance(image, RecordingView) or dim not in (0, -1 - image.ndim):
        return RecordingView.of_call("unsqueeze", (image, dim), {})
    return RecordingStack.made_of([plain(image)]).laid((len(image) * image.strides()[0], *image.strides()))


def _squeezed(image: Any, *dim: int) -> Any:
    if isinstance(image, RecordingStack) and not image.mixes and len(image) == 1 and dim in ((0,), (-image.ndim,)):
        return _picked(image, 0)
    return RecordingView.of_call("squeeze", (image, *dim), {})


def _unbound(image: Any, dim: int = 0) -> tuple[Any, ...]:
    if isinstance(image, RecordingStack) and dim == 0:
        return tuple(_indexed(image, k) for k in range(len(image)))
    return tuple(RecordingView.of_call("select", (image, dim, k), {}) for k in range(image.shape[dim]))


def _joined(images: Any, dim: int = 0) -> Any:
    images = list(images)
    stacks = all(isinstance(image, RecordingStack) and not image.mixes for image in images)
    if not stacks or dim != 0 or not of_plain_code():
        return RecordingView.of_call("cat", (images, dim), {})
    stack = RecordingStack.made_of([part.apart() for image in images for part in image.parts])
    return stack.laid(torch.cat([_without_memory(image) for image in images]).stride())


def _padded(image: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    if mode != "constant":
        raise NotRecordable(needs_pixels("pad"))
    left, right, top, bottom = (*pad, 0, 0, 0, 0)[:4]
    usual = len(pad) in (2, 4) and min(left, right, top, bottom) >= 0
    if not usual or isinstance(image, RecordingView) or not of_plain_code():
        return RecordingView.of_call("pad", (image, pad, mode, value), {})
    return record_any(plain(image), "pad", F.pad, ([left, top, right, bottom],), {"fill": value or 0})


def _stacked(tensors: Any, dim: int = 0, *, out: Any = None) -> Any:
    if out is not None:
        raise NotRecordable("images are stacked into a tensor")
    tensors = list(tensors)
    if dim in (0, -1 - tensors[0].ndim) and all(isinstance(one, Unreadable) and is_of_images(one) for one in tensors):
        return stacked(tensors)
    return RecordingView.of_call("stack", (tensors, dim), {})


def _flipped(image: Any, *dims: Any) -> Any:
    sides = {dim % image.ndim for dim in (dims[0] if isinstance(dims[0], (list, tuple)) else dims)}
    if not of_plain_code() or isinstance(image, RecordingView) or not sides <= {image.ndim - 1, image.ndim - 2}:
        return RecordingView.of_call("flip", (image, *dims), {})
    image = plain(image)
    for side, name in ((image.ndim - 1, "horizontal_flip"), (image.ndim - 2, "vertical_flip")):
        image = record_any(image, name, getattr(F, name), (), {}) if side in sides else image
    return image


def _like(make: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the answer to a function whose result holds no pixels."""

    def made(image: Any, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
        return make(image.shape, dtype=dtype or image.dtype, **kwargs)

    return made


_VIEWS = ("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "reshape", "view", "flatten",
          "expand", "repeat", "tile", "unfold", "narrow", "select", "unflatten", "roll", "rot90", "clone")  # fmt: skip
#: Names of the commonest calls by which plain code rearranges or converts what a transform has made.
ARRANGING = frozenset({"squeeze", "unsqueeze", "permute", "transpose", "long", "pad_sequence"})
_OWN: dict[str, Callable[..., Any]] = {
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "unbind": _unbound,
    "flip": _flipped,
    "fliplr": lambda image: _flipped(image, 1),
    "flipud": lambda image: _flipped(image, 0),
    "cat": _joined,
    "concat": _joined,
    "zeros_like": _like(torch.zeros),
    "ones_like": _like(torch.ones),
    "empty_like": _like(torch.empty),
    **{name: _viewed(name) for name in _VIEWS},
}
for _name, _answer in _OWN.items():
    for _owner in (Tensor, torch):
        if hasattr(_owner, _name):
            ANSWERS[getattr(_owner, _name)] = _answer
ANSWERS[torch.stack] = _stacked
ANSWERS[torch.nn.functional.pad] = _padded
ANSWERS[torch._C._nn.pad_sequence] = lambda images, *how, **kwargs: RecordingView.of_call(
    "pad_sequence", (list(images), *how), kwargs
)
ANSWERS[Tensor.__getitem__] = _indexed
ANSWERS[Tensor.__iter__] = lambda image: iter(_unbound(image))
