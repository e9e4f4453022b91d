"""Watch the transforms that the stages of a stream have as arguments, such as webdataset's ``map_tuple(transform)``.

A stage is an item of a list on the dataset: a generator function with its further arguments. It takes these arguments
once for a whole stream. They are replaced while the stream begins, by stand-ins that call the recorder that is active
at the time of the call, if any.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from .. import marker
from .attributes import attribute, has_attribute
from .slots import Slot, argument_slots, is_dataset, makes_data
from .spying import inside, replaced_by_spies

#: Maximum depth of datasets inside datasets.
_DEPTH = 6


def opened(dataset: Any) -> Iterator[Any]:
    """Return ``iter(dataset)``, with the calls of its stages' transforms visible to the active recorder."""
    slots = stage_slots(dataset)
    with _relayed(slots):
        items = iter(dataset)
    return _begun(items, slots) if slots else items


def _begun(items: Iterator[Any], slots: list[Slot]) -> Iterator[Any]:
    with _relayed(slots):  # many generators take their arguments with the first item
        first = list(itertools.islice(items, 1))
    yield from first
    yield from items


def _relayed(slots: list[Slot]) -> AbstractContextManager[None]:
    return replaced_by_spies([(slot, slot.get()) for slot in slots], _Relay())


class _Relay:
    """A recorder that forwards every call to the active recorder, which also sees the transforms inside."""

    def call(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        active = marker.recorder
        if active is None:
            return fn(*args, **kwargs)
        with replaced_by_spies(inside(fn), active):
            return active.call(name, fn, args, kwargs)


def stage_slots(dataset: Any) -> list[Slot]:
    """Return the slots of the transforms among the arguments of the dataset's stages."""
    slots: list[Slot] = []
    for stage in _stages(dataset, _DEPTH):
        maker = next(filter(inspect.isgeneratorfunction, [attribute(stage, "func", None), *vars(stage).values()]), None)
        if maker is not None and not makes_data(maker.__name__):
            slots += argument_slots(stage)
    return slots


def _stages(dataset: Any, depth: int) -> Iterator[Any]:
    """Yield everything with attributes in the lists of a dataset and of the datasets inside."""
    for value in list(attribute(dataset, "__dict__", {}).values()) if depth else []:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if is_dataset(item):
                yield from _stages(item, depth - 1)
            elif item is not value and has_attribute(item, "__dict__"):
                yield item
