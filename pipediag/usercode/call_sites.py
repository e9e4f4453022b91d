"""Find the names of modules in the user's code: the variables that hold them where they are called."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch import nn

from ..frames import is_ours, is_torchs
from .places import short

#: Maximum number of the user's frames that are searched, from the call outwards.
_DEPTH = 6


def call_site(module: nn.Module) -> tuple[str, str]:
    """Return the name of ``module`` in the code that calls it, and ``file:line`` of the call.

    The name is that of its class if no variable or attribute holds it; the place is "" if no user code is on the stack.
    """
    try:
        return _looked_up(module)
    except Exception:  # the loop continues, whatever its frames hold
        return type(module).__name__, ""


def _looked_up(module: nn.Module) -> tuple[str, str]:
    frame: FrameType | None = sys._getframe(1)
    where, searched = "", 0
    while frame is not None and searched < _DEPTH:
        file = frame.f_code.co_filename
        if not is_ours(file) and not is_torchs(file):
            where = where or f"{short(file)}:{frame.f_lineno}"
            name = _name_in(frame, module)
            if name:
                return name, where
            searched += 1
        frame = frame.f_back
    return type(module).__name__, where


def _name_in(frame: FrameType, module: nn.Module) -> str:
    for scope in (frame.f_locals, frame.f_globals):
        for name, value in scope.items():
            if value is module:
                return name
    for name, value in frame.f_locals.items():
        for attribute, held in _attributes(value).items():
            if held is module:
                return f"{name}.{attribute}"
    return ""


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes without running code of its own."""
    try:
        attributes = dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        return {}
    modules = attributes.get("_modules")
    return {**attributes, **modules} if isinstance(modules, dict) else attributes
