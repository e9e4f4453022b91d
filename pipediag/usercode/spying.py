"""Watching the transforms at work: stand-ins that report every call of a transform while one sample is made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import marker
from .paths import Path, has_identity, private, same, walk
from .slots import Slot, inner_slots

#: How deep transforms inside transforms are looked for.
_DEPTH = 4


@dataclass
class Call:
    """One recorded call of a transform, with inputs as they were before it ran."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mutates: bool = False


@dataclass
class Seen:
    """A call as it was seen: the objects that went in and came out, how they looked, and the calls made inside it."""

    call: Call
    inputs: list[tuple[Path, Any]]
    result: Any
    looked: Any  # a private copy of the result
    outputs: list[tuple[Path, Any]]  # the result's parts, whatever is done to the result later
    inner: list[Seen]
    given: Any  # the inputs as they looked
    seconds: float


@dataclass
class Recorder:
    """Collects the calls of spied transforms while one sample is made; calls inside a call stand below it."""

    seen: list[Seen] = field(default_factory=list)

    def call(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer, inner = self.seen, []  # type: tuple[list[Seen], list[Seen]]
        inputs = identities((args, kwargs))
        kept = private((args, kwargs))
        self.seen = inner
        began = time.perf_counter()
        try:
            result = fn(*args, **kwargs)
        finally:
            seconds, self.seen = time.perf_counter() - began, outer
        if is_path(args):  # reads a file: that is loading, and what it calls afterwards stands for itself
            outer.extend(inner)
            return result
        mutates = same((args, kwargs), kept) is not True
        call = Call(name, fn, kept[0], kept[1], mutates)
        outer.append(Seen(call, inputs, result, private(result), identities(result), inner, kept, seconds))
        return result


class Spy:
    """Stands in for a transform while a sample is made; everything but calling it goes to the original."""

    def __init__(self, name: str, fn: Callable[..., Any], recorder: marker.CallRecorder) -> None:
        self.__dict__.update(_name=name, _fn=fn, _recorder=recorder)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._recorder.call(self._name, self._fn, args, kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # a dataset may ask what its transform is
        return type(self._fn)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fn, name)

    def __bool__(self) -> bool:
        return bool(self._fn)

    def __len__(self) -> int:
        return len(self._fn)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._fn)

    def __getitem__(self, key: Any) -> Any:
        return self._fn[key]


@contextmanager
def spied(slots: list[Slot], recorder: marker.CallRecorder, deep: bool = False) -> Iterator[None]:
    """Every slot's transform and every marked call reports to ``recorder`` meanwhile.

    With ``deep`` the transforms inside those transforms report as well, as far as they can be found.
    """
    with ExitStack() as stack:
        found = [(slot, slot.get()) for slot in slots]
        if deep:
            entered: set[int] = set()
            for _, fn in list(found):
                found += _inside(fn, entered, _DEPTH)
        for slot, fn in found:
            stack.enter_context(slot.replaced(Spy(slot.name, fn, recorder)))
        before, marker.recorder = marker.recorder, recorder
        stack.callback(setattr, marker, "recorder", before)
        yield


def _inside(fn: Any, entered: set[int], depth: int) -> list[tuple[Slot, Any]]:
    """Places inside a transform that hold further ones, each place once, with what stands there."""
    if depth == 0 or id(fn) in entered or isinstance(fn, torch.jit.ScriptModule):
        return []
    entered.add(id(fn))
    found = [(slot, slot.get()) for slot in inner_slots(fn)]
    for _, value in list(found):
        found += _inside(value, entered, depth - 1)
    return found


def identities(obj: Any) -> list[tuple[Path, Any]]:
    """The parts that can be recognised again, with the way to each; holding them keeps their identities unique."""
    return [(path, part) for path, part in walk(obj) if has_identity(part)]


def is_path(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], (str, os.PathLike)) and os.path.exists(args[0])
