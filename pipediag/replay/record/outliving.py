"""Turn recorded images that code of the loop's own process keeps into the real ones that they stand for.

Without workers, the loop may hold what the dataset has made, in a global, an attribute, a list, an error's traceback.
There nothing may tell a recorded image from a real one. So once its batch is complete, each that still lives becomes a
real image itself, and is the same object to all who hold it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from .images import RecordingStack, real
from .session import session


@contextmanager
def noted() -> Iterator[list[ref[Any]]]:
    """Yield the list of all recording images made inside the context."""
    before, made = session.made, list[ref[Any]]()
    session.made = made
    try:
        yield made
    finally:
        session.made = before


def become_real(made: Sequence[ref[Any]]) -> int:
    """Turn the recording images that still live into real ones, and return their number."""
    living = [image for one in made if (image := one()) is not None]
    # First all, since a stack needs its parts, and a view what it was made of.
    for image, its in [(image, _real(image)) for image in living]:
        if its is not None:
            _turn(image, its)
    return sum(not isinstance(image, RecordingStack) for image in living)


def _real(image: Any) -> Any:
    """Return the real image, or None if it cannot be made: using it raises the error."""
    try:
        return real(image)
    except Exception:
        return None


def _turn(image: Any, its: Any) -> None:
    """Let an image be another object for the same pixels in the same memory."""
    if isinstance(its, Tensor):
        if its.requires_grad:
            return  # autograd knows a tensor by itself: this one goes on standing for it
        with torch._C.DisableTorchFunction():
            plain = its.as_subclass(Tensor)
            # Code may ask whether it is a view: that cannot be detached in place.
            torch._C._swap_tensor_impl(image, plain.view_as(plain) if its._is_view() else plain.detach())
    object.__setattr__(image, "__class__", type(its))
    held = object.__getattribute__(image, "__dict__")
    held.clear()
    held.update(vars(its))
