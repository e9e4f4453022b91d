"""Give what torch's functions and the methods of tensors give for recording images.

What only rearranges pixels is recorded as a view, or as a crop, a flip or a border where it is one of these; arithmetic
as a functional; what reads no pixel is computed. All else would need pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchvision.transforms.v2 import functional as F

from ..layout import contiguous
from ..ops.calls import ELEMENTWISE
from ..ops.op import NotRecordable
from .functional_calls import IN_PLACE
from .images import (
    RecordingStack,
    RecordingTensor,
    Unreadable,
    form_of,
    name_of,
    needs_pixels,
)
from .session import session
from .substitutes import stacked
from .views import RecordingView, is_of_images, laid, of_plain_code, without_memory

# ---- what needs no pixel, arithmetic and writing


def _written(image: Any, index: Any, value: Any) -> None:
    """Record ``image[:, top:bottom, left:right] = value`` as erasing a box."""
    image = image.as_images()
    if isinstance(image, RecordingStack):
        raise NotRecordable(needs_pixels("__setitem__"))
    shape, dtype, _, mask, *_ = image.tape.state
    as_box = isinstance(index, tuple) and len(index) == 3 and not mask  # torchvision erases no masks
    box = box_of(index, shape) if as_box else None
    value = value.clone() if isinstance(value, Tensor) else value
    if isinstance(value, (int, float)):
        value = torch.full((1, 1, 1), value, dtype=dtype)
    if box is None or not isinstance(value, Tensor) or not _fits(value, shape[0], box[2:], dtype):
        raise NotRecordable(needs_pixels("__setitem__"))
    image.record("erase", F.erase, (*box, value, True), {})


def box_of(index: Any, shape: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """Return the box (top, left, height, width) that an index selects in all channels of all images, or None."""
    parts = index if isinstance(index, tuple) else (index,)
    for k in [k for k, part in enumerate(parts) if part is Ellipsis][:1]:
        parts = (*parts[:k], *[slice(None)] * (len(shape) - len(parts) + 1), *parts[k + 1 :])
    parts = (*parts, *[slice(None)] * (len(shape) - len(parts)))
    if len(shape) < 3 or len(parts) != len(shape) or not all(isinstance(part, slice) for part in parts):
        return None
    *others, rows, columns = (range(*part.indices(side)) for part, side in zip(parts, shape, strict=True))
    whole = all(other == range(side) for other, side in zip(others, shape, strict=False))
    if not whole or {rows.step, columns.step} != {1} or not (rows and columns):
        return None
    return rows.start, columns.start, len(rows), len(columns)


def _fits(value: Tensor, channels: int, box: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Return whether an op can carry the value: one for each channel, or float32 pixels of the whole box."""
    alike = value.dtype == dtype and value.is_cpu and not value.requires_grad
    each_pixel = value.shape == (channels, *box) and dtype in (torch.float32, torch.uint8)
    return alike and (each_pixel or tuple(value.shape) in ((1, 1, 1), (channels, 1, 1)))


ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__setitem__: _written,
    torch.is_tensor: lambda image: True,
    torch.is_floating_point: lambda image: image.dtype.is_floating_point,
    torch.numel: lambda image: image.numel(),
    torch.Tensor.requires_grad.__get__: lambda image, *_: False,
    torch.Tensor.is_cuda.__get__: lambda image, *_: False,
    torch.Tensor.is_sparse.__get__: lambda image, *_: False,
    torch.Tensor.layout.__get__: lambda image, *_: torch.strided,
    torch.Tensor.double: lambda image: image.cpu().to(torch.float64),
    torch.Tensor.long: lambda image: image.cpu().to(torch.int64),
    torch.Tensor.int: lambda image: image.cpu().to(torch.int32),
    torch.Tensor.byte: lambda image: image.cpu().to(torch.uint8),
}


def _computed(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return what records a method of tensors as the functional ``name``."""

    def compute(image: Any, *args: Any, **kwargs: Any) -> Any:
        # A transform's own link may use an image again that it has written into, and is not run twice for that.
        of_link = session.calls is None and fn in IN_PLACE
        if not isinstance(image, Unreadable) or session.dictation is not None or of_link:
            raise NotRecordable(needs_pixels(name))
        plain = type(image) in (RecordingTensor, RecordingStack)
        if fn not in IN_PLACE and not plain:
            image = image.typed(Tensor)
        args = tuple([arg.clone() if type(arg) is Tensor else arg for arg in args])  # code may write into it later
        made = image.recorded(name, fn, args, kwargs)
        return made.as_subclass(Tensor) if fn in IN_PLACE and made is image and not plain else made

    return compute


for _of in ("add", "sub", "rsub", "mul", "div", "clamp"):
    for _method in (*ELEMENTWISE[_of].methods, *ELEMENTWISE[_of].writing):
        if _function := getattr(Tensor, _method, None):
            ANSWERS[_function] = _computed(_of, _function)
for _of in ("add", "sub", "mul", "div", "clamp", "pow"):
    ANSWERS[getattr(torch, _of)] = _computed(_of, getattr(torch, _of))
ANSWERS[Tensor.pow] = ANSWERS[Tensor.__pow__] = _computed("pow", Tensor.pow)  # the latter cannot be pickled


def _of_its_form(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls ``fn``, which reads no pixel, with tensors of the images' form."""
    beside = fn in _AS_ANOTHER  # it reads the pixels of its first argument

    def call(*args: Any, **kwargs: Any) -> Any:
        if session.calls is None or (beside and isinstance(args[0], Unreadable)):
            raise NotRecordable(needs_pixels(name_of(fn)))
        return fn(*tree_map_only(Unreadable, form_of, args), **tree_map_only(Unreadable, form_of, kwargs))

    return call


_LIKE = ("full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")
_AS_ANOTHER = frozenset(getattr(Tensor, name) for name in ("expand_as", "view_as", "reshape_as", "type_as"))
for _fn in (*(getattr(torch, name) for name in _LIKE), *(getattr(Tensor, name) for name in _NEW), *_AS_ANOTHER):
    ANSWERS[_fn] = _of_its_form(_fn)


# ---- what rearranges pixels


def _indexed(image: Any, index: Any) -> Any:
    """Record ``image[index]``: an image of a stack, a crop, or another part."""
    if isinstance(image, RecordingView) and image.images is not None:
        return _indexed(image.images, index)
    if isinstance(image, RecordingStack) and not image.mixes and isinstance(index, (int, slice)):
        return _picked(image, index)
    is_order = type(index) is Tensor and index.ndim == 1 and index.dtype is torch.int64 and index.numel() > 0
    if isinstance(image, RecordingStack) and not image.mixes and is_order:  # as a permutation
        if image.strides() != contiguous(tuple(image.shape)):
            raise NotRecordable(needs_pixels("__getitem__"))
        return RecordingStack.made_of([image.parts[k].apart() for k in index.tolist()])
    box = None if not of_plain_code() or isinstance(image, RecordingView) else box_of(index, tuple(image.shape))
    if box is not None:
        return image.plain().recorded("crop", F.crop, box, {})
    if index is None:
        return _unsqueezed(image, 0)
    return RecordingView.of_call("__getitem__", (image, index), {})


def _picked(stack: Any, index: int | slice) -> Any:
    """Return an image of a stack, or a stack of some of its images."""
    strides = stack.strides()
    if isinstance(index, slice):
        parts, step = stack.parts[index], index.indices(len(stack))[2]
        if not parts or step < 1:
            raise NotRecordable(needs_pixels("__getitem__"))
        return RecordingStack.made_of(parts, (strides[0] * step, *strides[1:]))
    stack.parts[index] = laid(stack.parts[index], strides[1:])
    return stack.parts[index].plain()


def _unsqueezed(image: Any, dim: int) -> Any:
    if not of_plain_code() or isinstance(image, RecordingView) or dim not in (0, -1 - image.ndim):
        return RecordingView.of_call("unsqueeze", (image, dim), {})
    return RecordingStack.made_of([image.plain()], (len(image) * image.strides()[0], *image.strides()))


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
    strides = torch.cat([without_memory(image) for image in images]).stride()
    return RecordingStack.made_of([part.apart() for image in images for part in image.parts], strides)


def _padded(image: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    if mode != "constant":
        raise NotRecordable(needs_pixels("pad"))
    left, right, top, bottom = (*pad, 0, 0, 0, 0)[:4]
    plain = len(pad) in (2, 4) and min(left, right, top, bottom) >= 0
    if not plain or isinstance(image, RecordingView) or not of_plain_code():
        return RecordingView.of_call("pad", (image, pad, mode, value), {})
    return image.plain().recorded("pad", F.pad, ([left, top, right, bottom],), {"fill": value or 0})


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
    image = image.plain()
    for side, name in ((image.ndim - 1, "horizontal_flip"), (image.ndim - 2, "vertical_flip")):
        image = image.recorded(name, getattr(F, name), (), {}) if side in sides else image
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
    **{name: lambda *args, _name=name, **kwargs: RecordingView.of_call(_name, args, kwargs) for name in _VIEWS},
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
