"""The random generators that transforms draw from: going back to where they stood."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def state() -> tuple[Any, ...]:
    """Where the process-wide generators of Python, torch and numpy (if it is imported) stand."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy is not None else None


def restore(kept: tuple[Any, ...]) -> None:
    random.setstate(kept[0])
    torch.set_rng_state(kept[1])
    numpy = sys.modules.get("numpy")
    if numpy is not None and kept[2] is not None:
        numpy.random.set_state(kept[2])


@contextmanager
def undisturbed() -> Iterator[None]:
    """What is drawn inside does not change what is drawn afterwards."""
    kept = state()
    try:
        yield
    finally:
        restore(kept)


def same_state(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two results of :func:`state` are equal; numpy counts where both processes have it."""
    alike = one[0] == other[0] and torch.equal(one[1], other[1])
    if one[2] is None or other[2] is None:
        return bool(alike)
    return bool(alike and (one[2][1] == other[2][1]).all() and one[2][2:] == other[2][2:])
