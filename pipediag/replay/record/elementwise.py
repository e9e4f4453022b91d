"""Record what plain code computes for each pixel: arithmetic, comparisons, choices by a mask, and writing by an index.

The result is a :class:`.views.RecordingView`, for which the device makes the same call
(:mod:`pipediag.replay.ops.calls`). Python code never sees a value: ``if``, ``float()`` and the like need the
pixels. Arithmetic of images with numbers stays an op of each image.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..decode.undecoded import is_undecoded
from ..ops.calls import ELEMENTWISE, arranged, refusal
from ..ops.exactness import may_be_off
from ..ops.op import NotRecordable
from .answers import ANSWERS as ANSWERS
from .images import ELSEWHERE, RecordingTensor, Unreadable, needs_pixels
from .tape import Tape
from .views import RecordingView, is_of_images, of_plain_code

_Answer = Callable[..., Any]


def _computed(name: str, args: Sequence[Any]) -> RecordingView:
    """Record a call on tensors and numbers.

    Raises:
        NotRecordable: the device may give other values.
    """
    args = [float(arg) if isinstance(arg, float) else arg for arg in args]  # numpy's too
    if why := refusal(name, args):
        raise NotRecordable(f"{name} {why} is not recorded: {ELSEWHERE}")
    if not _is_accepted(name, tuple(arg.dtype if isinstance(arg, Tensor) else type(arg) for arg in args)):
        raise NotRecordable(needs_pixels(name))  # for which torch has an error
    if ELEMENTWISE[name].decides:
        for image in args:
            _require_equal(image)
    return RecordingView.of_call(name, tuple(arg.plain() if isinstance(arg, Unreadable) else arg for arg in args), {})


_SOME = {bool: True, int: 1, float: 1.0}


@functools.lru_cache(1024)
def _is_accepted(name: str, kinds: tuple[Any, ...]) -> bool:
    """Return whether torch computes a call on tensors of these dtypes and numbers of these types: without memory, it
    takes some that it refuses."""
    args = [
        torch.ones(1, dtype=kind, device="cpu") if isinstance(kind, torch.dtype) else _SOME.get(kind) for kind in kinds
    ]
    try:
        arranged(name, args, {})
    except Exception:
        return False
    return True


def _require_equal(image: Any) -> None:
    """Check that the device gives an image exactly the pixels that the CPU gives it.

    Raises:
        NotRecordable: it may not.
    """
    for single in image.singles() if isinstance(image, Unreadable) else ():
        tape: Tape = single.tape
        shape, dtype = tape.begun.shape, tape.begun.dtype
        for op in tape.ops:
            if may_be_off(op.kind, shape, dtype):
                raise NotRecordable(f"an image is compared after {op.name}, which may differ on the device")
            shape, dtype = op.shape, op.dtype
        if is_undecoded(tape.source):
            raise NotRecordable("an image is compared that is decoded on the device")


def _answer(name: str, recorded: _Answer | None) -> _Answer:
    """Return the answer to a function; ``recorded`` is that for an image with one number, or one for each channel."""

    def calculate(*args: Any, **kwargs: Any) -> Any:
        if recorded is not None and not of_plain_code():
            return recorded(*args, **kwargs)
        given = _positional(name, args, kwargs)
        return recorded(*given) if recorded is not None and _is_an_images_op(name, given) else _computed(name, given)

    return calculate


def _positional(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    if kwargs.keys() - {"min", "max"} or (kwargs and name != "clamp"):
        raise NotRecordable(needs_pixels(name))
    return (*args, *[kwargs.get(bound) for bound in ("min", "max")[len(args) - 1 :]]) if name == "clamp" else args


def _is_an_images_op(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether a call is of one image, and of numbers or a value for each channel: its tape records it."""
    if name == "clamp" and any(bound is None for bound in args[1:]):
        return False
    images = [arg for arg in args if isinstance(arg, Unreadable)]
    others = [arg for arg in args if isinstance(arg, Tensor) and not isinstance(arg, Unreadable)]
    # Others hold one value, or one for each channel ``(C, 1, 1)``.
    if len(images) != 1 or not is_of_images(images[0]) or any(one.ndim and one.numel() > one.size(0) for one in others):
        return False
    fraction = name == "div" or any(isinstance(arg, float) for arg in args)
    return images[0].dtype == torch.float32 or (images[0].dtype == torch.uint8 and fraction)


# ---- writing


def _writing(name: str, recorded: _Answer | None) -> _Answer:
    """Return the answer to a method that writes its result into its tensor."""

    def write(image: Any, *args: Any, **kwargs: Any) -> Any:
        if recorded is not None and not _can_become(image):
            return recorded(image, *args, **kwargs)
        given = _positional(name, (image, *args), kwargs)
        if recorded is not None and _is_an_images_op(name, given):
            return recorded(*given)
        return _become(image, lambda before: _computed(name, (before, *given[1:])))

    return write


def _can_become(image: Any) -> bool:
    """Return whether another call may take an image's place: it is one of its own, or made by a call that copies."""
    if not of_plain_code():
        return False
    if isinstance(image, RecordingView):
        return image.images is None and image.is_recorded and image.is_alone
    return type(image) is RecordingTensor and image.tape.is_recorded


def _become(image: Any, call: Callable[[Any], RecordingView]) -> Any:
    """Let an image stand for what ``call`` makes of it, after which nothing that shares its memory can be used.

    Raises:
        NotRecordable: the call is not recorded, or gives a tensor of another form.
    """
    if not _can_become(image):
        raise NotRecordable(needs_pixels("writing"))
    if isinstance(image, RecordingView):
        before = RecordingView.of_result(image.like, *image.call)
    else:
        tape: Tape = image.tape
        if tape.is_users:
            raise NotRecordable("the dataset's own image is written into")
        before = image.of(tape.apart())
    made = call(before)
    if (made.shape, made.dtype, made.strides()) != (image.shape, image.dtype, image.strides()):
        raise NotRecordable("an image is written into by a call that gives another type or layout")
    made.lies_in(image)
    image.__class__ = RecordingView
    image.__dict__.update(made.__dict__)
    return image


def _put(box: _Answer) -> _Answer:
    """Return the answer to ``image[index] = value``; ``box`` records it as erasing a box."""

    def write(image: Any, index: Any, value: Any) -> None:
        raised = NotRecordable.raised
        try:
            if not isinstance(image, RecordingView) or image.images is not None or not _can_become(image):
                box(image, index, value)
                return
        except NotRecordable:
            if not _can_become(image):
                raise
            NotRecordable.raised = raised  # nothing is hidden
        is_number = isinstance(value, (int, float))
        if is_number and isinstance(index, Tensor) and index.dtype == torch.bool and index.shape == image.shape:
            _become(image, lambda before: _computed("masked_fill", (before, index, value)))
            return
        at = _selecting(index)
        fits = not refusal("masked_fill", (image, value)) if is_number else getattr(value, "dtype", None) == image.dtype
        if not fits or (isinstance(value, Tensor) and value.requires_grad):
            raise NotRecordable(needs_pixels("__setitem__"))
        _become(image, lambda before: RecordingView.of_call("put", (before, at, value), {}))

    return write


def _selecting(index: Any) -> tuple[Any, ...]:
    """Return an index that selects each pixel at most once, of plain numbers and slices.

    Raises:
        NotRecordable: it may be another one.
    """
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(_bounds(part) if isinstance(part, slice) else _number(part) for part in parts)


def _bounds(part: slice) -> slice:
    return slice(*(None if bound is None else _number(bound) for bound in (part.start, part.stop, part.step)))


def _number(part: Any) -> Any:
    if part is Ellipsis or part is None:
        return part
    if isinstance(part, (bool, list)) or (isinstance(part, Tensor) and (part.dtype == torch.bool or part.ndim)):
        raise NotRecordable(needs_pixels("__setitem__"))
    return operator.index(part)


# ---- answers


def _extreme(one: str, of_two: str) -> _Answer:
    """Return the answer to the largest or smallest of all pixels, or of two images pixel by pixel."""

    def find(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not all(isinstance(arg, Tensor) for arg in args):
            raise NotRecordable(needs_pixels(one))
        if len(args) > 1:
            return _computed(of_two, args)
        if why := refusal("maximum", args):
            raise NotRecordable(f"{one} {why} is not recorded: {ELSEWHERE}")
        return RecordingView.of_call(one, (args[0].plain(),), {})

    return find


#: Types of tensors as torch named them before dtypes.
_OLD_TYPES = {torch.FloatTensor: torch.float32, torch.LongTensor: torch.int64, torch.ByteTensor: torch.uint8,
              "torch.FloatTensor": torch.float32, "torch.LongTensor": torch.int64}  # fmt: skip


def _typed(image: Any, *dtype: Any) -> Any:
    """Record ``image.type(dtype)``."""
    wanted = _OLD_TYPES.get(*dtype, *dtype) if len(dtype) == 1 else None
    if not isinstance(wanted, torch.dtype):
        raise NotRecordable(needs_pixels("type"))
    return image.cpu().to(wanted)


for _name, _of in ELEMENTWISE.items():
    for _methods, _make in ((_of.methods, _answer), (_of.writing, _writing)):
        for _method in _methods:
            for _owner in (torch, Tensor) if _method[0] != "_" else (Tensor,):
                if _function := getattr(_owner, _method, None):
                    ANSWERS[_function] = _make(_name, ANSWERS.get(_function))
_where = _answer("where", None)
ANSWERS.update({torch.where: _where, Tensor.where: lambda image, condition, other: _where(condition, image, other)})
for _owner in (torch, Tensor):
    for _name, _two in (("max", "maximum"), ("min", "minimum"), ("amax", "maximum"), ("amin", "minimum")):
        ANSWERS[getattr(_owner, _name)] = _extreme(f"a{_name[-3:]}", _two)
ANSWERS.update(
    {
        Tensor.type: _typed,
        Tensor.bool: lambda image: _computed("ne", (image, 0)),
        Tensor.__setitem__: _put(ANSWERS[Tensor.__setitem__]),
    }
)
