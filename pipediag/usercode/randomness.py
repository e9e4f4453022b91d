"""Save, restore and compare the states of the random generators that transforms draw from."""

from __future__ import annotations

import _random
import ctypes
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Bytes of numpy's MT19937 state: 624 words, and the position in them.
_MT19937 = 4 * 625


def state() -> tuple[Any, ...]:
    """Return the states of the process-wide generators of Python, torch and numpy (if it is imported)."""
    numpy = sys.modules.get("numpy")
    kept = numpy.random.get_state(legacy=False) if numpy is not None else None
    return random.getstate(), torch.get_rng_state(), kept


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
    return None if _alike(here, there) else "numpy's"


def _alike(one: Any, other: Any) -> bool:
    """Return whether two states of numpy's are equal: dictionaries of numbers and arrays, whatever the generator."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    same = one == other
    return bool(same if isinstance(same, bool) else same.all())


def glance() -> tuple[Any, ...]:
    """Return the states in a form for :func:`drawn_from`, ten times as fast as :func:`state`.

    Of numpy, the spare value that a normal draw leaves for the next one is not included.
    """
    numpy = sys.modules.get("numpy")
    words: Any = None
    if numpy is not None:
        generator = numpy.random.get_bit_generator()
        if type(generator) is numpy.random.MT19937:
            words = ctypes.string_at(generator.ctypes.state_address, _MT19937)
        else:
            words = repr(generator.state)
    return _of_python(), torch.get_rng_state().numpy().tobytes(), words


def _of_python() -> Any:
    if sys.implementation.name != "cpython":
        return random.getstate()
    generator: Any = random._inst
    # The object's memory behind its header: getstate() would make 625 numbers of it.
    header, whole = object.__basicsize__, _random.Random.__basicsize__
    return generator.gauss_next, ctypes.string_at(id(generator) + header, whole - header)


def drawn_from(one: tuple[Any, ...], other: tuple[Any, ...]) -> str | None:
    """Return the name of the first generator whose state differs between two results of :func:`glance`, or None."""
    if one[0] != other[0]:
        return "Python's"
    if one[1] != other[1]:
        return "torch's"
    return "numpy's" if None not in (one[2], other[2]) and one[2] != other[2] else None
