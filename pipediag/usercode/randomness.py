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


def moved(one: tuple[Any, ...], other: tuple[Any, ...]) -> str | None:
    """Whose generator stands elsewhere in one result of :func:`state` than in another; None where all stand alike.

    numpy counts where both hold it: before it is imported it stands nowhere.
    """
    if one[0] != other[0]:
        return "Python's"
    if not torch.equal(one[1], other[1]):
        return "torch's"
    here, there = one[2], other[2]
    if here is None or there is None:
        return None
    return None if (here[1] == there[1]).all() and here[2:] == there[2:] else "numpy's"
