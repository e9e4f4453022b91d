"""Record the product of a matrix and an image's channels, in the ways in which people write it.

Most of them rearrange the image before the product and after it. What is rearranged is a :class:`.views.RecordingView`,
also in a transform's own link, which records no other. It must be an image again at the link's end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ops.calls import arranged
from ..ops.families.colour_matrix import DOT, FLAT, LAST, colour_matrix
from ..ops.op import NotRecordable
from .elementwise import ANSWERS as ANSWERS
from .images import RecordingStack, Unreadable, form_of, needs_pixels
from .session import session
from .views import RecordingView, as_it_is, of_plain_code

_Answer = Callable[..., Any]
_FLATTENING = ("view", "reshape", "flatten")


def _is_image(value: Any) -> bool:
    """Return whether a value is a single image that no code has got the pixels of."""
    single = isinstance(value, Unreadable) and not isinstance(value, (RecordingStack, RecordingView))
    return single and value.ndim == 3 and not value.tape.settled


def _within(view: Any) -> tuple[Any, str] | None:
    """Return the image that a view consists of, and how it lies there: ``(C, H * W)``, or ``(H, W, C)``."""
    if not isinstance(view, RecordingView) or view.images is not None or not view.is_recorded:
        return None
    name, args, options = view.call
    if not args or not _is_image(args[0]):
        return None
    image, *given = args
    channels, height, width = image.shape
    if name in _FLATTENING and tuple(view.shape) == (channels, height * width):
        return image, FLAT
    return (image, LAST) if name == "permute" and not options and _dimensions(given) == (1, 2, 0) else None


def _dimensions(given: Any) -> tuple[int, ...]:
    return tuple(dim % 3 for dim in (given[0] if isinstance(given[0], (tuple, list)) else given))


# ---- before the product, and after it


def _rearranging(name: str, answer: _Answer) -> _Answer:
    """Return the answer to a method that rearranges; ``answer`` is that for all else."""

    def rearranged(image: Any, *args: Any, **kwargs: Any) -> Any:
        made = None
        if session.dictation is not None:
            pass
        elif isinstance(image, RecordingView):
            made = _back(name, image, args, kwargs)
        elif not of_plain_code() and _is_image(image):
            image = image.plain()
            like = _like(name, form_of(image, "meta"), args, kwargs)
            made = None if like is None else RecordingView.of_result(like, name, (image.as_it_is(), *args), kwargs)
            made = None if _within(made) is None else made
        return answer(image, *args, **kwargs) if made is None else made

    return rearranged


def _like(name: str, image: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return what a method makes of a tensor without memory; None if it fails, as it does on pixels."""
    try:
        with torch._C.DisableTorchFunction():
            return arranged(name, (image, *args), kwargs)
    except Exception:
        return None


def _back(name: str, view: RecordingView, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the image that a view consists of if the call makes it of the view; otherwise None."""
    image, how = _within(view) or (None, "")
    if image is None or (how == LAST) != (name == "permute"):
        return None
    args = tuple([tuple(arg.shape) if isinstance(arg, Tensor) else arg for arg in args])
    like = _like(name.removesuffix("_as"), view.like, args, kwargs)
    if like is None or like.shape != image.shape or (how == LAST and (kwargs or _dimensions(args) != (2, 0, 1))):
        return None
    is_product = any((op.name, op.static) == ("colour_matrix", (how,)) for op in image.tape.ops[-1:])
    return image.as_it_is() if is_product or like.stride() == image.strides() else None


# ---- products


def _product(matrix: Any, image: Any, how: str) -> Any:
    """Record the product of a matrix and an image."""
    usual = type(matrix) is Tensor and matrix.dtype == torch.float32 and matrix.ndim == 2 and _is_image(image)
    if not usual or session.dictation is not None or matrix.size(int(how != LAST)) != len(image):
        raise NotRecordable(needs_pixels("matmul"))
    return image.plain().recorded("colour_matrix", colour_matrix, (as_it_is(matrix), how), {})


def _multiplied(one: Any, other: Any) -> Any:
    """Record ``matrix @ image`` of a flat image, or ``image @ matrix`` of one with its channels last."""
    image, how = _within(other if isinstance(other, RecordingView) else one) or (None, "")
    if image is None or (how == LAST) != isinstance(one, RecordingView):
        raise NotRecordable(needs_pixels("matmul"))
    made = _product(one, image, FLAT) if how == FLAT else _product(other, image, LAST)
    channels, height, width = made.shape
    shape = (channels, height * width) if how == FLAT else (height, width, channels)
    name, args = ("view", (made, *shape)) if how == FLAT else ("permute", (made, 1, 2, 0))
    if isinstance(made, Unreadable):
        return RecordingView.of_result(torch.empty(shape, device="meta", dtype=made.dtype), name, args, {})
    return arranged(name, args, {})  # it needed pixels


#: The letters of the matrix's two dimensions, of the image's, and of the result's.
_EQUATION = re.compile(r"(\w)(?!\1)(\w),\2(?P<of_image>(?!\1|\2)(\w)(?!\1|\2|\4)\w|\.\.\.)->\1(?P=of_image)")


def _by_equation(equation: str, matrix: Any, image: Any) -> Any:
    if not _EQUATION.fullmatch(equation.replace(" ", "")):
        raise NotRecordable(needs_pixels("einsum"))
    return _product(matrix, image, equation)


def _dotted(matrix: Any, image: Any, dims: Any = 2, out: Any = None) -> Any:
    if out is not None or (dims != 1 and [*map(list, dims)] != [[1], [0]]):
        raise NotRecordable(needs_pixels("tensordot"))
    return _product(matrix, image, DOT)


for _name in (*_FLATTENING, "unflatten", "view_as", "reshape_as", "permute"):
    for _owner in (Tensor, torch):
        if _function := getattr(_owner, _name, None):
            ANSWERS[_function] = _rearranging(_name, ANSWERS[_function])
ANSWERS.update(dict.fromkeys((torch.matmul, Tensor.matmul, torch.mm, Tensor.mm), _multiplied))
ANSWERS.update({torch.einsum: _by_equation, torch.tensordot: _dotted})
