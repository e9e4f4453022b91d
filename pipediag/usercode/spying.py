"""Record every call of a transform while one sample is made, with stand-ins for the transforms.

The stages of a stream have theirs as arguments, such as webdataset's ``map_tuple(transform)``. A stage is an item of a
list on the dataset: a generator function with its further arguments. It takes these arguments once for a whole stream.
They are replaced while the stream begins, by stand-ins that call the recorder that is active at the time of the call,
if any.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import marker
from ..clock import time
from .attributes import attribute, has_attribute, is_a
from .paths import Path, has_identity, private, same, walk
from .stand_ins import standing_in
from .transform_slots import Slot, argument_slots, inner_slots, is_dataset, makes_data

#: Maximum depth of the search for transforms inside transforms.
_DEPTH = 4


@dataclass
class Call:
    """One recorded call of a transform, with inputs as they were before it ran."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mutates: bool = False

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.args, self.kwargs


@dataclass
class Seen:
    """An observed call: its input and output objects, a copy of the output, and the calls made inside it."""

    call: Call
    inputs: list[tuple[Path, Any]]
    result: Any
    looked: Any  # a private copy of the result
    outputs: list[tuple[Path, Any]]  # the result's parts, whatever is done to the result later
    inner: list[Seen] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Recorder:
    """A recorder of the transforms' calls while one sample is made; nested calls go below the outer one."""

    seen: list[Seen] = field(default_factory=list)

    def call(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = identities((args, kwargs))
        kept = private((args, kwargs))
        outer, inner = self.seen, list[Seen]()
        self.seen = inner
        began = time.perf_counter()
        try:
            result = fn(*args, **kwargs)
        finally:
            seconds, self.seen = time.perf_counter() - began, outer
        if is_path(args):  # reads a file, which is loading; its inner calls are recorded on their own
            outer.extend(inner)
            return result
        mutates = same((args, kwargs), kept) is not True
        call = Call(name, fn, kept[0], kept[1], mutates)
        outer.append(Seen(call, inputs, result, private(result), identities(result), inner, seconds))
        return result


def spy(name: str, fn: Callable[..., Any], recorder: marker.CallRecorder) -> Any:
    """Return a stand-in for a transform that records its calls."""
    return standing_in(fn, lambda *args, **kwargs: recorder.call(name, fn, args, kwargs))


def spied(slots: list[Slot], recorder: marker.CallRecorder, deep: bool = False) -> AbstractContextManager[None]:
    """Record the calls of every slot's transform and every marked call with ``recorder`` within the context.

    With ``deep``, nested transforms are recorded as well, to the extent that they can be found.
    """
    return recorded(with_nested(slots) if deep else [(slot, slot.get()) for slot in slots], recorder)


def with_nested(slots: list[Slot]) -> list[tuple[Slot, Any]]:
    """Return the slots and those of nested transforms, each with its value; the search takes a while."""
    found, entered = [(slot, slot.get()) for slot in slots], set[int]()
    return found + [one for _, fn in found for one in inside(fn, entered)]


@contextmanager
def recorded(found: list[tuple[Slot, Any]], recorder: marker.CallRecorder) -> Iterator[None]:
    """Record the calls of the given slots' transforms and every marked call with ``recorder`` within the context."""
    with replaced_by_spies(found, recorder):
        before, marker.recorder = marker.recorder, recorder
        try:
            yield
        finally:
            marker.recorder = before


@contextmanager
def replaced_by_spies(found: list[tuple[Slot, Any]], recorder: marker.CallRecorder) -> Iterator[None]:
    """Record the calls of the given slots' transforms with ``recorder`` within the context."""
    with ExitStack() as stack:
        for slot, fn in found:
            stack.enter_context(slot.replaced(spy(slot.name, fn, recorder)))
        yield


def inside(fn: Any, entered: set[int] | None = None, depth: int = _DEPTH) -> list[tuple[Slot, Any]]:
    """Return the slots inside a transform, at any depth, with their values; transforms in ``entered`` are skipped."""
    entered = set() if entered is None else entered
    if depth == 0 or id(fn) in entered or is_a(fn, torch.jit.ScriptModule):
        return []
    entered.add(id(fn))
    found = [(slot, slot.get()) for slot in inner_slots(fn)]
    for _, value in list(found):
        found += inside(value, entered, depth - 1)
    return found


def identities(obj: Any) -> list[tuple[Path, Any]]:
    """Return the recognizable parts with their paths; the references keep the parts' ids unique."""
    return [(path, part) for path, part in walk(obj) if has_identity(part)]


def is_path(args: tuple[Any, ...]) -> bool:
    return bool(args) and is_a(args[0], (str, os.PathLike)) and os.path.exists(args[0])


#: Maximum depth of datasets inside datasets.
_DATASETS = 6


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
    for stage in _stages(dataset, _DATASETS):
        maker = next(filter(inspect.isgeneratorfunction, [attribute(stage, "func", None), *vars(stage).values()]), None)
        if maker is not None and not makes_data(maker.__name__):
            slots += argument_slots(stage)
    return slots


def _stages(dataset: Any, depth: int) -> Iterator[Any]:
    """Yield everything with attributes in the lists of a dataset and of the datasets inside."""
    for value in list(attribute(dataset, "__dict__", {}).values()) if depth else []:
        for item in value if is_a(value, (list, tuple)) else [value]:
            if is_dataset(item):
                yield from _stages(item, depth - 1)
            elif item is not value and has_attribute(item, "__dict__"):
                yield item
