"""Record functional calls on recording images: their ops go to the image's tape, or the call runs on the pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ops.calls import ELEMENTWISE
from ..ops.op import NotRecordable, encoded, gives_itself
from ..ops.operation import Functional
from ..ops.table import FUNCTIONALS
from .call import Call
from .session import on_pixels, session
from .tape import Tape

#: Methods that write their result into their tensor.
IN_PLACE = frozenset(
    getattr(Tensor, method) for of in ELEMENTWISE.values() for method in of.writing if hasattr(Tensor, method)
)


def record(
    image: Any, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fixed: bool = True
) -> Any:
    """Return the image after a functional call, and write the call to its tape.

    Where a sample is trained on, a call that cannot be recorded runs on the pixels.
    """
    try:
        return _recorded(image, name, fn, args, kwargs, fixed)
    except NotRecordable as error:
        session.settles(error)
    return on_pixels(image, fn, args, kwargs)


def record_each(
    stack: Any, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fixed: bool = True
) -> Any:
    """The same for a stack of images: torchvision's functions give each what they give it alone."""
    functional, call = FUNCTIONALS[name], Call(fn, args, kwargs)

    def change(image: Any) -> Any:
        after = _tape_after(image, functional, fn, args, kwargs, fixed)
        return image if after is image.tape else image.of(after)

    try:
        if functional.draws or functional.several or session.dictation is not None:
            raise NotRecordable(f"{name} of several images at once is not recorded, only of one image at a time")
        made = stack.each(change, call)
        if not _is_in_place(functional, fn, args, kwargs):
            return made
        for part, after in zip(stack.singles(), made.singles(), strict=True):  # other stacks may hold the part too
            part.tape = part.tape.writing(after.tape)
        return stack
    except NotRecordable as error:
        session.settles(error)
    return on_pixels(stack, fn, args, kwargs)


def _recorded(
    image: Any, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fixed: bool
) -> Any:
    if session.dictation is not None:
        session.dictation.append((name, Call(fn, args, kwargs)))
        return image
    tape, functional = image.tape, FUNCTIONALS[name]
    if functional.several:
        parts, _ = _ops_of(image, functional, fn, args, kwargs, fixed)
        return tuple(image.of(tape.then(part, fn, args, kwargs, k)) for k, part in enumerate(parts))
    after = _tape_after(image, functional, fn, args, kwargs, fixed)
    if after is tape:
        return image
    if not _is_in_place(functional, fn, args, kwargs):
        return image.of(after)
    image.tape = tape.writing(after)
    return image


def _tape_after(
    image: Any,
    functional: Functional,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fixed: bool,
) -> Tape:
    """Return the tape of an image after a call; the same one if the call returns the image itself.

    Raises:
        NotRecordable: the call is not recorded, or would write into the dataset's own image.
    """
    tape: Tape = image.tape
    drawn_from = torch.get_rng_state() if functional.draws else None
    ops, unchanged = _ops_of(image, functional, fn, args, kwargs, fixed)
    if unchanged and not ops and session.calls is not None:
        return tape
    after = tape.then(ops, fn, args, kwargs, drawn_from=drawn_from)
    if tape.is_users and _is_in_place(functional, fn, args, kwargs):
        raise NotRecordable("the dataset's own image is written into")
    return after


def _ops_of(
    image: Any,
    functional: Functional,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fixed: bool,
) -> tuple[Any, bool]:
    """Return the ops of a call, and whether it returns the image itself."""
    state = image.tape.state
    ops = encoded(functional.encode, state if fixed else state._replace(fixed=False), args, kwargs)

    def tried() -> tuple[Tensor, Any]:
        with session.idle(), session.beginning_nowhere(), torch.random.fork_rng(devices=()):
            zeros = torch.zeros(state.shape, dtype=state.dtype, device="cpu").as_subclass(image.stands_for)
            return zeros, fn(zeros, *args, **kwargs)

    of = image.stands_for, state.dtype, state.channels
    return ops, gives_itself(fn, of, args, kwargs, () if functional.several else ops, tried)


def _is_in_place(functional: Functional, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return writes(functional, args, kwargs) or fn in IN_PLACE


def writes(functional: Functional, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call with these arguments writes into the image."""
    return functional.in_place is not None and bool(kwargs.get("inplace", False) or any(args[functional.in_place :]))
