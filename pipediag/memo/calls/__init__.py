"""The library calls that are known to depend on their inputs only, a file for a family."""

from __future__ import annotations

from . import arrays, decoders, pictures, sounds
from .call import FAMILIES, PURE, Call

CALLS: tuple[Call, ...] = (*pictures.CALLS, *decoders.CALLS, *arrays.CALLS, *sounds.CALLS)

__all__ = ["CALLS", "FAMILIES", "PURE", "Call"]
