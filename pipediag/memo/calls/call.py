"""Describe a library call whose result depends on its inputs only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..arena import Arena

#: What calls are counted as, by number.
FAMILIES = ("Pillow", "torchvision.io", "OpenCV", "numpy.load", "sound files", "@pipediag.pure")
PILLOW, TORCHVISION, OPENCV, NUMPY, SOUND, PURE = range(len(FAMILIES))


class Remembering(Protocol):
    """The memo, as calls use it."""

    arena: Arena

    def recall(
        self,
        family: int,
        key: Callable[[], bytes],
        plain: Callable[[], Any],
        pack: Callable[[Any], Any],
        unpack: Callable[[Any], Any],
    ) -> Any: ...


class Call(NamedTuple):
    """A function or method to patch.

    Attributes:
        module: where it is, if it is imported.
        owner: the class or object in the module that has it; empty for the module itself.
        name: of the function.
        stand_in: takes the memo and the function, and returns what stands in for the function.
    """

    module: str
    owner: str
    name: str
    stand_in: Callable[[Remembering, Callable[..., Any]], Callable[..., Any]]
