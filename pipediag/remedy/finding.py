"""Decide whether a loader's own first batches can show what moves, or whether it must be tried on samples beforehand.

Beside a batch that is trained on, only libraries' code can be tried: the user's code may run no more often than without
the remedy, and it gets real images there. So nothing shows what it does with recorded ones. Where it asks for the exact
type of an object, which differs, it is tried beforehand.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ..replay.record.scouting import has_only_librarys
from ..usercode.attributes import attribute
from ..usercode.contents import is_library, names_in

#: What tells a recorded image from a real one.
_TELLING = frozenset({"type", "__class__", "id", "repr"})
_DEPTH = 8  # of datasets in datasets


def shown_by_batches(loader: DataLoader[Any]) -> bool:
    """Return whether the loader's batches can show what moves, while the loop trains on them."""
    if isinstance(loader.dataset, IterableDataset) or not has_only_librarys(loader.dataset):
        return False
    code = [*_methods(loader.dataset, _DEPTH), *_functions(loader.collate_fn)]
    return not any(_TELLING.intersection(names_in(fn.__code__)) for fn in code)


def _methods(dataset: Any, depth: int) -> Iterator[types.FunctionType]:
    """Yield the methods of the user's own of a dataset and of those inside it."""
    for kind in type(dataset).__mro__:
        if not is_library(kind):
            yield from (fn for value in vars(kind).values() for fn in _functions(value))
    several = attribute(dataset, "datasets", None)
    inner = [attribute(dataset, "dataset", None), *(several if isinstance(several, (list, tuple)) else ())]
    for one in inner if depth else ():
        if one is not None:
            yield from _methods(one, depth - 1)


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """Yield the user's function that a value is, or that is called with it."""
    value = value.__func__ if isinstance(value, (staticmethod, classmethod, types.MethodType)) else value
    if not isinstance(value, types.FunctionType):
        value = attribute(type(value), "__call__", None)
    if isinstance(value, types.FunctionType) and not is_library(value):
        yield value
