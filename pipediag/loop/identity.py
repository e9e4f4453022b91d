"""Tell a script's loaders apart: by the object while it lives, and by where it is iterated once it is rebuilt."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where a loader is iterated.

    Attributes:
        where: ``file:line`` of the user's code.
        order: the loader's number among those that are iterated there, from 0 on.
    """

    where: str
    order: int


class Places:
    """The places of all loaders of this process. It keeps no loader alive."""

    def __init__(self) -> None:
        self._at: dict[str, list[weakref.ref[Any]]] = {}

    def of(self, loader: Any, where: str) -> Place:
        """Return the place of a loader that is now iterated at ``where``.

        A loader that was not seen there before takes the first place whose loader is gone, as in a script that builds
        its loader again for every epoch, or else a new place.
        """
        loaders = [known() for known in self._at.setdefault(where, [])]
        free = next((k for k, known in enumerate(loaders) if known is None), len(loaders))
        order = next((k for k, known in enumerate(loaders) if known is loader), free)
        self._at[where][order : order + 1] = [weakref.ref(loader)]
        return Place(where, order)
