"""Decide whether a loader's own first batches can show what moves, or whether it must be tried on samples beforehand.

Beside a batch that is trained on, only libraries' code can be tried: the user's code may run no more often than without
the remedy, and it gets real images there. So nothing shows what it does with recorded ones. Where it may ask for the
exact type of an object, which differs, it is tried beforehand.

What was found out is remembered for a loader that a script makes again in its place. Neither a dataset nor anything
that it holds is kept alive: what was found of plain code is remembered only as long as the dataset.
"""

from __future__ import annotations

import sys
import types
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..replay.certify.certifying import Certificate
from ..replay.certify.samples import Real, Recorded
from ..replay.fingerprint import digest
from ..replay.ops.table import FUNCTIONALS, OLDER
from ..replay.plan import Plan
from ..replay.record.answers import ARRANGING
from ..replay.record.scouting import has_only_librarys
from ..replay.record.twins import is_librarys
from ..usercode.attributes import ByObject, has_attribute, is_a
from ..usercode.contents import compares_identity, is_library, is_library_module, loaded_in, names_in, package, reached
from ..usercode.links import links_of
from ..usercode.places import label, place_of
from ..usercode.transform_slots import find_slots
from .summary import class_name

#: What tells a recorded image from a real one, beside comparing it with the one that it was made of.
_TELLING = frozenset({"type", "__class__", "id", "dir", "vars", "__dict__"})
#: What changes or rearranges an image, by name: functions of torchvision, and Pillow's methods and tensors' of these
#: names.
_CHANGING = frozenset({*FUNCTIONALS, *OLDER, *ARRANGING})
#: Libraries that take a recorded image for a real one, or ask it for pixels, which shows in the batch, or take none.
_KNOWN = frozenset({"torch", "torchvision", "PIL", "numpy", "pandas", *sys.stdlib_module_names})
#: Maximum number of functions to read.
_MOST = 300


def why_stream_stays(loader: DataLoader[Any]) -> str:
    """Return why an unmodified script must not get recorded samples of an iterable dataset; empty if it may.

    A sample of a stream cannot be made again. So its code must not be able to fail on a recorded image, however late.
    """
    if not isinstance(loader.dataset, IterableDataset) or not (why := _why_not_shown(loader)):
        return ""
    return (
        f"a sample of {type(loader.dataset).__name__} cannot be made again, and {why}; if it changes images and can do "
        "without their pixels, move that in the script: loader = pipediag.offload(loader)"
    )


def shown_by_batches(loader: DataLoader[Any]) -> bool:
    """Return whether the loader's batches can show what moves, while the loop trains on them.

    All code of the user's that the dataset and the collate function can reach is read: it must not ask for types, call
    no library that may, and make no calls that could move.
    """
    return not _why_not_shown(loader)


def _why_not_shown(loader: DataLoader[Any]) -> str:
    """Return which code hinders that, in words; empty if none does."""
    if not has_only_librarys(loader.dataset):
        links = [link for slot in find_slots(loader.dataset) for link in links_of(slot.get())]
        own = [_in_words(link) for link in links if not is_librarys(link)]
        return f"its transform {own[0]} is not torchvision's" if own else "no transforms of torchvision's were found"
    functions = 0
    for value in reached(loader.dataset, loader.collate_fn):
        if isinstance(value, types.FunctionType):
            functions += 1
            code = value.__code__
            telling = _TELLING if is_library(value) else _TELLING | _CHANGING
            names = set(names_in(code)) - ({"id"} - loaded_in(code))  # a worker's own number is ``info.id``
            if functions > _MOST:
                return "its code is too long to be read"
            if not telling.isdisjoint(names) or compares_identity(code):
                return f"{_in_words(value)} may ask for types or change images"
        elif _is_of_another_library(value):
            return f"its code can call {_in_words(value)}, which may need pixels"
    return ""


def _in_words(value: Any) -> str:
    """Return the name of a module, or of code and its place or library."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    place = place_of(value)
    return f"{place.name} ({place.where or package(value)})"


def _is_of_another_library(value: Any) -> bool:
    """Return whether a module, class or function is of a library of which nothing is known."""
    if isinstance(value, types.ModuleType):
        return is_library_module(value) and value.__name__.partition(".")[0] not in _KNOWN
    if not callable(value):
        return False
    # Compiled functions are of many types: a ufunc, one of Cython's, one that numba compiles.
    value = value if is_a(value, type) or has_attribute(value, "__name__") else type(value)
    name = package(value)
    return name not in _KNOWN and name != "" and is_library(value)


Key = tuple[Any, ...]


class Found(NamedTuple):
    """What was found out."""

    plan: Plan
    certificate: Certificate | None
    first: list[tuple[Real, Recorded]] | None = None  # the batches compared so far for a certificate


class Known:
    """What was found out so far."""

    def __init__(self) -> None:
        self._found: dict[Key, Found] = {}
        self._of_dataset = ByObject[tuple[Key, Found]]()

    def key(self, dataset: Any, device: torch.device, *options: bool) -> Key | None:
        """Return what a finding depends on: the dataset's class and its transforms; None if those cannot be read."""
        try:
            links = [link for slot in find_slots(dataset) for link in links_of(slot.get())]
            return class_name(dataset), str(device), options, tuple((label(link), digest(link)) for link in links)
        except Exception:
            return None

    def found(self, key: Key, dataset: Any) -> Found | None:
        """Return the finding for this key; one with calls of plain code only for this very dataset."""
        its_key, found = self._of_dataset.get(dataset) or (None, None)
        return found if its_key == key else self._found.get(key)

    def note(self, key: Key, dataset: Any, found: Found) -> None:
        """Remember a finding."""
        if not found.plan.begins:
            self._found[key] = found
            return
        self._found.pop(key, None)
        with suppress(TypeError):  # it allows no weak references
            self._of_dataset.set(dataset, (key, found))
