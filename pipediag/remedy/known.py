"""Remember what was found out about a dataset's transforms, for a loader that a script makes again in its place.

Neither a dataset nor anything that it holds is kept alive: code of the user's own is remembered only as long as the
dataset that it was proven on.
"""

from __future__ import annotations

import types
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from ..replay.certify.certifying import Certificate
from ..replay.certify.samples import Real, Recorded
from ..replay.custom.fingerprint import digest
from ..replay.plan import Plan
from ..usercode.by_object import ByObject
from ..usercode.links import links_of
from ..usercode.places import label
from ..usercode.slots import find_slots
from .summary import class_name

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
        """Return the finding for this key; one with code of the user's own only for this very dataset."""
        its_key, found = self._of_dataset.get(dataset) or (None, None)
        return found if its_key == key else self._found.get(key)

    def note(self, key: Key, dataset: Any, found: Found) -> None:
        """Remember a finding."""
        if not found.plan.own:
            self._found[key] = found
            return
        if any(isinstance(shapes.fn, types.MethodType) for shapes in found.plan.own.values()):
            return  # it would keep the dataset
        with suppress(TypeError):  # it allows no weak references
            self._of_dataset.set(dataset, (key, found))
