"""Keep recorded calls, which can run again on real images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...patches import beneath
from ...usercode.places import label
from ..layout import copied


def spoken(fn: Callable[..., Any]) -> str:
    """Return the name of a function, or of a method of tensors."""
    return label(fn).removeprefix("TensorBase.")


def itself(image: Any) -> Any:
    """Return the image: recorded in place of a call that changes only the type, or what a pickled one becomes."""
    return image


class Call(NamedTuple):
    """Functional call with its arguments, which can run again on real pixels."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None = None  # index in a result that is a tuple
    drawn_from: Tensor | None = None  # state of torch's generator before the call, if it draws
    ops: int = 0  # number of ops that replay it
    site: int = 0  # index of the link of the user's chain that made it

    @property
    def name(self) -> str:
        return spoken(self.fn)

    def __reduce__(self) -> Any:
        # pickle refuses a library's function that has a layer of ours on top of it meanwhile, unless it is named.
        fn: Any = self.fn
        name = getattr(fn, "__module__", ""), getattr(fn, "__qualname__", "")
        return _call, (name if _named(*name) is fn else fn, *self[1:])

    def __call__(self, image: Any) -> Any:
        """Return the result for a copy of the image: the original is still needed, even if the call writes into it."""
        return self.on(copied(image) if isinstance(image, Tensor) else image)

    def on(self, image: Any) -> Any:
        """Return the result for the image itself, into which the call may write."""
        # It was recorded outside of autocast, but code may need the pixels inside.
        draws = self.drawn_from is not None
        with torch.random.fork_rng(devices=(), enabled=draws), torch.autocast("cpu", enabled=False):
            if self.drawn_from is not None:
                torch.set_rng_state(self.drawn_from)
            result = self.fn(image, *self.args, **self.kwargs)
        return result if self.part is None else result[self.part]


class Recorded(NamedTuple):
    """Call as a tape holds it: ``call(drawn)`` returns it when it is needed."""

    call: Callable[[Any], Call]
    drawn: Any
    ops: int
    site: int

    def made(self) -> Call:
        return self.call(self.drawn)._replace(ops=self.ops, site=self.site)

    def on(self, image: Any) -> Any:
        return self.call(self.drawn).on(image)


Calls = Sequence[Recorded]


def made_by(calls: Calls, image: Any) -> Any:
    for one in calls:
        image = one.on(image)
    return image


def _call(fn: Any, *others: Any) -> Call:
    return Call(_named(*fn) if isinstance(fn, tuple) else fn, *others)


def _named(module: str, name: str) -> Any:
    """Return a function without the layers on top of it; None if there is none of that name."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return beneath(found)
