"""Find the strides that an image has without the remedy.

Stacked images are contiguous; what functions make of a stack may not be. An image that a sample or a list holds by
itself keeps what the user's transforms gave it: the layout of Pillow's pixels, channels last, or the view that a crop
is. The recorded calls are made once more on a tensor without memory, whose strides torch computes as for real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..layout import Strides, contiguous, is_dense
from ..ops.op import Kind, Op, Shape
from .call import Call
from .session import session
from .tape import Tape


class Layout(NamedTuple):
    """How a stack lies in memory without the remedy (:func:`strides_of_stack`)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    #: The strides of a real tensor, or the layouts of the stacks that were stacked; empty if contiguous.
    made_of: Strides | tuple[Layout, ...] = ()
    #: The calls on it since, and the kinds of the ops that repeat each.
    calls: tuple[tuple[Call, tuple[Kind, ...]], ...] = ()


def strides_of_stack(layout: Layout) -> Strides:
    """Return the strides of a stack of images without the remedy."""
    if not layout.made_of and not layout.calls:
        return contiguous(layout.shape)
    with session.idle():
        return tuple(_stack(layout).stride())


def _stack(layout: Layout) -> Tensor:
    """Return a stack without memory."""
    made_of = [one for one in layout.made_of if isinstance(one, Layout)]
    if made_of:
        image = torch.stack([_stack(one) for one in made_of])
    else:
        strides = layout.made_of or contiguous(layout.shape)
        image = torch.empty_strided(layout.shape, strides, dtype=layout.dtype, device="meta")
    for call, kinds in layout.calls:
        known = all(kind.operation.each_pixel or kind.operation.by_order for kind in kinds)
        known = (known or call.name in _ONLY_REAL_STACKS) and is_dense(image)
        key = (call.fn, kinds, image.shape, image.dtype, image.stride()) if known else None
        if key not in _KNOWN_OF_STACKS:
            made = _run(call, image)
            if key is None:
                image = made
                continue
            _KNOWN_OF_STACKS[key] = tuple(made.shape), made.dtype, tuple(made.stride())
        shape, dtype, strides = _KNOWN_OF_STACKS[key]
        image = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return image


_KNOWN_OF_STACKS: dict[Any, tuple[Shape, torch.dtype, Strides]] = {}


def strides_of(tape: Tape) -> Strides:
    """Return the strides of the tensor that the calls of a tape make."""
    source = tape.source
    image = _without_memory(source) if isinstance(source, Tensor) else None
    shape: Shape = (len(source.getbands()), *tape.source_size) if image is None else ()
    ops, done = tape.ops, 0
    with session.idle():
        for call in tape.calls:
            mine = ops[done : done + call.ops]
            done += call.ops
            if image is not None:
                image = _called(call, mine, image)
            elif call.name in _OF_PICTURES:
                image = _OF_PICTURES[call.name](shape)
            elif mine:
                shape = mine[-1].shape
    assert image is not None
    return tuple(image.stride())


def _of_to_tensor(shape: Shape) -> Tensor:
    picture = _of_pil_to_tensor(shape).contiguous()
    return torch.empty_strided(shape, picture.stride(), dtype=torch.get_default_dtype(), device="meta")


def _of_pil_to_tensor(shape: Shape) -> Tensor:
    channels, height, width = shape
    return torch.empty((height, width, channels), dtype=torch.uint8, device="meta").permute(2, 0, 1)


#: What torchvision's functions make of a picture, by their names.
_OF_PICTURES: dict[str, Callable[[Shape], Tensor]] = {
    "to_tensor": _of_to_tensor,
    "pil_to_tensor": _of_pil_to_tensor,
    "to_image": _of_pil_to_tensor,
}
#: Functions whose strides differ without memory; and those for which that holds only of stacks with channels last.
_ONLY_REAL = frozenset({"permute_channels"})
_ONLY_REAL_STACKS = frozenset({"gaussian_blur", "pad"})


def _called(call: Call, ops: Sequence[Op], image: Tensor) -> Tensor:
    """Return an image without memory like the result of a call."""
    known = [op.kind.operation.each_pixel or op.kind.operation.by_order for op in ops]
    if not ops or 1 in image.shape or not is_dense(image) or not all(known):
        return _run(call, image)
    order = _outermost_first(image.stride())
    kinds = (call.fn, *[op.kind for op in ops], image.shape[0], image.dtype, order)
    if kinds not in _KNOWN:
        _KNOWN[kinds] = tuple(_run(call, _in_order((image.shape[0], 5, 7), image.dtype, order)).stride())
    strides = _KNOWN[kinds]
    made = _in_order(ops[-1].shape, ops[-1].dtype, _outermost_first(strides))
    small = _in_order((ops[-1].shape[0], 5, 7), ops[-1].dtype, _outermost_first(strides))
    return made if tuple(small.stride()) == strides else _run(call, image)


_KNOWN: dict[Any, Strides] = {}


def _outermost_first(strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))


def _in_order(shape: Shape, dtype: torch.dtype, order: Sequence[int]) -> Tensor:
    """Return a dense image without memory whose dimensions lie in this order, the outermost first."""
    dense = torch.empty([shape[dim] for dim in order], dtype=dtype, device="meta")
    return dense.permute([order.index(dim) for dim in range(len(order))])


def _run(call: Call, image: Tensor) -> Tensor:
    """Make a call on an image without memory, or on zeros if that fails."""
    if image.ndim == 2:  # a mask, to which torchvision adds the dimension of channels
        return _run(call, image.unsqueeze(0)).squeeze(0)
    made: Any = None
    only_real = _ONLY_REAL if image.ndim < 4 or image.is_contiguous() else _ONLY_REAL | _ONLY_REAL_STACKS
    if call.name not in only_real and 1 not in image.shape:  # torch may give a dimension of size 1 another stride
        try:
            made = call(image)
        except Exception:  # it reads pixels
            pass
    if made is None:
        made = call(torch.empty_strided(image.shape, image.stride(), dtype=image.dtype, device="cpu").zero_())
    return _without_memory(made)


def _without_memory(image: Tensor) -> Tensor:
    return torch.empty_strided(image.shape, image.stride(), dtype=image.dtype, device="meta")
