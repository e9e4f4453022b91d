"""Watch everything that a callable holds and can reach, and find out whether a call changed it."""

from __future__ import annotations

import pickle
import random
import sys
import types
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...usercode.paths import same
from .inside import LEAVES, cells, class_values, closed_over, globals_of, is_library, is_record, slot_values
from .refusal import Refused

#: Limits on what a callable may hold: beyond them, watching takes too long and device memory is better used.
_MOST_PLACES, _MOST_BYTES = 100_000, 1 << 28

_Inside = list[tuple[str, Any]]


class Held:
    """Snapshot of everything that a callable holds and can reach: closures, globals, attributes, and their contents.

    Raises:
        Refused: it holds too much.
    """

    def __init__(self, fn: Any) -> None:
        self._spots: list[_Spot] = []
        seen: dict[int, Any] = {}
        pending: _Inside = [("itself", fn)]
        held_bytes = 0
        while pending:
            name, value = pending.pop()
            if id(value) in seen:
                continue
            seen[id(value)] = value
            held_bytes += _nbytes(value)
            if held_bytes > _MOST_BYTES:
                raise Refused(f"it holds more than {_MOST_BYTES >> 20} MiB, too much to be watched and taken along")
            spots, inside = _look(name, value, value is fn)
            self._spots += spots
            pending += [(name, part) for name, part in inside if not isinstance(part, LEAVES)]
            if len(seen) + len(pending) > _MOST_PLACES:
                raise Refused(f"it holds more than {_MOST_PLACES} objects, too many to be watched for changes")

    def changed(self) -> str | None:
        """Return what the first change means, with the name of the place, or None if nothing changed."""
        for spot in self._spots:
            name = spot.changed()
            if name is not None:
                return f"{spot.means} ({name})"
        return None

    def check(self) -> None:
        """Check for changes.

        Raises:
            Refused: something changed.
        """
        change = self.changed()
        if change is not None:
            raise Refused(change)

    def put_back(self) -> None:
        """Undo all changes in places that can be written to."""
        with torch.no_grad():
            for spot in self._spots:
                if spot.changed() is not None:
                    spot.undo()


class _Spot:
    """Place where a callable could keep state; ``now`` returns its values by name.

    ``put`` writes a value back under its name, ``drop`` removes a name.
    """

    def __init__(
        self,
        now: Callable[[], dict[Any, Any]],
        put: Callable[[Any, Any], Any] = lambda name, value: None,
        drop: Callable[[Any], Any] = lambda name: None,
        means: str = "it keeps state between calls",
    ) -> None:
        self._now, self._put, self._drop, self._kept = now, put, drop, now()
        self.means = means

    def changed(self) -> str | None:
        """Return the first name whose value changed, or None; equal data in a new object is no change."""
        now, gone = self._now(), object()
        for name in {**self._kept, **now}:
            before, after = self._kept.get(name, gone), now.get(name, gone)
            if before is not after and same(before, after) is not True:
                return str(name)
        return None

    def undo(self) -> None:
        now = self._now()
        try:
            for name in now.keys() - self._kept.keys():
                self._drop(name)
            for name, value in self._kept.items():
                if name not in now or now[name] is not value:
                    self._put(name, value)
        except Exception:  # the object does not allow writing
            pass


def _look(name: str, obj: Any, entered: bool) -> tuple[list[_Spot], _Inside]:
    """Return the places of one object and its contents. With ``entered``, even a library's function is searched."""
    if isinstance(obj, Tensor):
        return [_tensor_spot(name, obj)], []
    if isinstance(obj, types.FunctionType):
        return _look_into_function(name, obj) if entered or not is_library(obj) else ([], [])
    if isinstance(obj, types.MethodType):
        return [], [(name, obj.__self__), (name, obj.__func__)]
    if isinstance(obj, (staticmethod, classmethod)):
        return [], [(name, obj.__func__)]
    if isinstance(obj, property):
        return [], [(name, obj.fget)]
    if isinstance(obj, partial):
        return [], [(name, obj.func), (name, obj.args), (name, obj.keywords)]
    if isinstance(obj, type):
        return ([], []) if is_library(obj) else _look_into_class(obj)
    if isinstance(obj, dict):
        return [_entries_spot(obj, lambda: dict(obj))], [(str(key), value) for key, value in obj.items()]
    if isinstance(obj, (list, deque)):
        return [_items_spot(name, obj)], [(name, item) for item in obj]
    if isinstance(obj, (tuple, frozenset)):
        return [], [(name, item) for item in obj]
    generator = _generator_spot(name, obj)
    if generator is not None:
        return [generator], []
    return _look_into_record(obj) if is_record(obj) else ([_content_spot(name, obj)], [])


def _look_into_function(name: str, fn: types.FunctionType) -> tuple[list[_Spot], _Inside]:
    of_cells = _Spot(
        lambda: closed_over(fn),
        lambda variable, value: setattr(cells(fn)[variable], "cell_contents", value),
        lambda variable: delattr(cells(fn)[variable], "cell_contents"),
    )
    attached = [(name, fn.__dict__), (name, fn.__defaults__), (name, fn.__kwdefaults__)]
    spots = [_entries_spot(fn.__globals__, lambda: globals_of(fn)), of_cells]
    return spots, [*globals_of(fn).items(), *closed_over(fn).items(), *attached]


def _look_into_class(cls: type) -> tuple[list[_Spot], _Inside]:
    spot = _Spot(lambda: class_values(cls), partial(type.__setattr__, cls), partial(type.__delattr__, cls))
    return [spot], [*class_values(cls).items(), *((base.__name__, base) for base in cls.__bases__)]


def _look_into_record(obj: Any) -> tuple[list[_Spot], _Inside]:
    attributes = getattr(obj, "__dict__", {})
    of_slots = _Spot(lambda: slot_values(obj), partial(object.__setattr__, obj), partial(object.__delattr__, obj))
    spots = [_entries_spot(attributes, lambda: dict(attributes)), of_slots]
    return spots, [(type(obj).__name__, type(obj)), *attributes.items(), *slot_values(obj).items()]


def _entries_spot(mapping: dict[Any, Any], now: Callable[[], dict[Any, Any]]) -> _Spot:
    """Return the place for a dict or a namespace, limited to the entries that ``now`` gives."""
    return _Spot(now, lambda key, value: mapping.update({key: value}), mapping.__delitem__)


def _items_spot(name: str, items: list[Any] | deque[Any]) -> _Spot:
    def put(_: str, kept: list[Any]) -> None:
        items.clear()
        items.extend(kept)

    return _Spot(lambda: {name: list(items)}, put)


def _tensor_spot(name: str, tensor: Tensor) -> _Spot:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:  # its elements cannot be compared
        return _Spot(lambda: {name: tensor._version})
    return _Spot(lambda: {name: tensor.detach().clone()}, lambda _, kept: tensor.copy_(kept))


def _generator_spot(name: str, obj: Any) -> _Spot | None:
    """Return the place for a random generator that the user made, or None for any other object."""
    numpy = sys.modules.get("numpy")
    get: Callable[[], Any]
    put: Callable[[Any], None]
    if isinstance(obj, random.Random) and not isinstance(obj, random.SystemRandom):
        get, put = obj.getstate, obj.setstate
    elif isinstance(obj, torch.Generator) or (numpy is not None and isinstance(obj, numpy.random.RandomState)):
        get, put = obj.get_state, obj.set_state
    elif numpy is not None and isinstance(obj, numpy.random.Generator):
        get, put = lambda: obj.bit_generator.state, lambda kept: setattr(obj.bit_generator, "state", kept)
    else:
        return None
    return _Spot(lambda: {name: get()}, lambda _, kept: put(kept), means="it draws from a random generator of its own")


def _content_spot(name: str, obj: Any) -> _Spot:
    """Return the place for any other object: an array, a set, an itertools counter. Only an array's content can be put
    back."""
    if _is_array(obj):
        return _Spot(lambda: {name: obj.copy()}, lambda _, kept: obj.__setitem__(..., kept))
    return _Spot(lambda: {name: _content(obj)})


def _content(obj: Any) -> Any:
    for written in (pickle.dumps, repr):
        try:
            return written(obj)
        except Exception:  # objects that cannot be serialized are covered only by the comparison of results
            continue
    return None


def _nbytes(obj: Any) -> int:
    if isinstance(obj, Tensor):
        return int(obj.numel() * obj.element_size())
    return int(obj.nbytes) if _is_array(obj) else 0


def _is_array(obj: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, numpy.ndarray)
