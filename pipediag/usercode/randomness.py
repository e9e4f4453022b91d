"""Save, restore and compare the states of the random generators that transforms draw from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def state() -> tuple[Any, ...]:
    """Return the states of the process-wide generators of Python, torch and numpy (if it is imported)."""
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
    """Restore the generators after the context."""
    kept = state()
    try:
        yield
    finally:
        restore(kept)


def moved(one: tuple[Any, ...], other: tuple[Any, ...]) -> str | None:
    """Return the name of the first generator whose state differs between two results of :func:`state`, or None.

    numpy is compared only if both results include it: it has no state before it is imported.
    """
    if one[0] != other[0]:
        return "Python's"
    if not torch.equal(one[1], other[1]):
        return "torch's"
    here, there = one[2], other[2]
    if here is None or there is None:
        return None
    return None if (here[1] == there[1]).all() and here[2:] == there[2:] else "numpy's"
