"""Make samples and batches without the calls at one line: their results are kept from when the same were made before.

Something is made again with the random generators where they stood when it was made first. So its calls come in the
same order with the same arguments, each gets a copy of the result that it gave, and the code around them finds what it
found before. Whatever differs all the same is called.

A result is kept only if a copy of it is as good: it consists of arrays, tensors, pictures and simple values; it shares
no memory with what the call was given; and the call changed nothing that can be seen. Else the line is timed only.
"""

from __future__ import annotations

import copy
import io
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch

from ...clock import time
from ...memo.values import Unfit, copies_of
from ...usercode import randomness, tree
from ...usercode.attributes import attribute, has_attribute, is_a, is_exactly
from ...usercode.call_sites import CallSites, NoCalls
from ...usercode.paths import same
from ...usercode.places import label

#: Seconds below which a call is not worth a copy of its result.
_QUICK = 20e-6
#: Share of the time of a line's calls that must be saved for the rest to count as the loop without that line.
_SAVED = 0.8
#: Number of items up to which a container is looked into, and its depth.
_ITEMS, _DEPTH = 512, 3
#: Number of times that something is made in full before too little can be left out: a first call may fill a cache.
_TRIES = 3
_SIMPLE = (int, float, complex, str, bytes, bool, type(None))
#: Built-in objects of which it is seen whether a call changes them.
_PLAIN = (*_SIMPLE, bytearray, list, tuple, dict, set, frozenset)


@dataclass
class _Call:
    """A call that was made: what it was given, its seconds, and what makes its result again.

    ``after`` is the state of the random generators after a call that drew from them. ``why_not`` says why its result
    is not kept.
    """

    given: Any
    seconds: float
    again: Callable[[], Any] | None = None
    after: tuple[Any, ...] | None = None
    why_not: str = ""


@dataclass
class _Made:
    """Something made under watch: the random generators before, and the calls in their order."""

    before: tuple[Any, ...]
    calls: list[_Call] = field(default_factory=list)


class KeptCalls:
    """The results of the calls at the line ``where``, within ``room`` bytes.

    Attributes:
        seconds: spent on keeping results and copying them since this was last reset.
        idle: True if none of the calls was made so far.
        complete: False if something was made in full since this was last reset.
        why_not: why the line cannot be left out; empty if it can, as far as is known.
    """

    def __init__(self, where: str, room: float, of_threads: bool = False) -> None:
        self.why_not = "the workers share a process" if of_threads else ""
        try:
            self._sites = CallSites(where, self._call)
        except NoCalls as reason:
            self.why_not = str(reason)
        self._room = room
        self._made: dict[Hashable, _Made] = {}
        self._making: _Made | None = None
        self._first = self._inside = False
        self._next = 0
        self._thread = 0
        self._tries = 0
        self._saved = self._missed = 0.0  # seconds of calls that were left out, and of those that had to be made
        self.seconds = 0.0
        self.complete = self.idle = True

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Restore the random generators after the context."""
        began = time.perf_counter()
        before = randomness.state()
        self.seconds += time.perf_counter() - began
        try:
            yield
        finally:
            began = time.perf_counter()
            randomness.restore(before)
            self.seconds += time.perf_counter() - began

    def make(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what ``make`` makes, without the calls that were made for the same ``key`` before."""
        began = time.perf_counter()
        known = self._made.get(key)
        if known is not None:
            randomness.restore(known.before)
        self._making = known or _Made(randomness.state())
        self._first, self._next, self._thread = known is None, 0, get_ident()
        with self._sites.installed():
            self.seconds += time.perf_counter() - began
            try:
                made = make()
            finally:
                making, self._making = self._making, None
        if known is None:
            self.complete = False
            self._take(key, making)
        elif self._missed > (1 - _SAVED) * (self._missed + self._saved):
            self.why_not = "its arguments differ when the same sample is made again"
        return made

    def _take(self, key: Hashable, made: _Made) -> None:
        """Keep the calls for ``key`` if that saves most of their time."""
        lost = [one for one in made.calls if one.again is None]
        if sum(one.seconds for one in lost) <= (1 - _SAVED) * sum(one.seconds for one in made.calls):
            self._made[key] = made
            return
        self._tries += 1
        if self._tries == _TRIES:
            self.why_not = max(lost, key=lambda one: one.seconds).why_not

    def _call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Stand for a call at the line."""
        if self._making is None or self._inside or get_ident() != self._thread:
            return fn(*args, **kwargs)
        self._inside = True
        try:
            return (self._keep if self._first else self._answer)(self._making.calls, fn, args, kwargs)
        finally:
            self._inside = False

    def _answer(self, calls: list[_Call], fn: Any, args: Any, kwargs: Any) -> Any:
        began = time.perf_counter()
        known = calls[self._next] if self._next < len(calls) else None
        self._next += 1
        if known is not None and known.again is not None and known.given == _looks((label(fn), args, kwargs)):
            result = known.again()
            if known.after is not None:
                randomness.restore(known.after)
            self._saved += known.seconds
            self.seconds += time.perf_counter() - began
            return result
        begins = time.perf_counter()
        self.seconds += begins - began
        result = self._sites.call(fn, args, kwargs)
        if known is None or known.again is not None:
            self._missed += time.perf_counter() - begins
        return result

    def _keep(self, calls: list[_Call], fn: Any, args: Any, kwargs: Any) -> Any:
        began = time.perf_counter()
        self.idle, given = False, [_receiver(fn), args, kwargs]
        held = [*args, *kwargs.values()]  # numpy writes into arrays that nobody else holds
        looks, reads = _looks((label(fn), args, kwargs)), _reads_on(given)
        before, drawn = None if reads else _state(given), randomness.glance()
        begins = time.perf_counter()
        self.seconds += begins - began
        call = _Call(looks, 0.0, why_not=f"{label(fn)} raises an error")
        calls.append(call)
        try:
            result = self._sites.call(fn, args, kwargs)
        finally:
            ends = time.perf_counter()
            call.seconds = ends - begins
        call.why_not = self._why_not(call, result, given, before, reads)
        if call.why_not:
            call.why_not = f"{label(fn)} {call.why_not}"
        elif randomness.drawn_from(drawn, randomness.glance()):
            call.after = randomness.state()
        del held
        self.seconds += time.perf_counter() - ends
        return result

    def _why_not(self, call: _Call, result: Any, given: Any, before: Any, reads: bool) -> str:
        """Return why a result is not kept; empty if it is."""
        if call.seconds < _QUICK:
            return "is too quick to be left out"
        if reads:
            return "reads on in what it is given"
        if result is None:
            return "returns nothing: what it does is elsewhere"
        if same(before, _state(given)) is not True:
            return "changes what it is given"
        if _share_memory(result, given):
            return "returns part of what it is given"
        try:
            nbytes, call.again = _copies_of(result)
        except Unfit:
            return "returns what cannot be copied"
        self._room -= nbytes
        if self._room < 0:
            call.again = None
            return "returns too much to be kept"
        return ""


def _receiver(fn: Any) -> Any:
    """Return the object that a method belongs to, or a callable object itself; None for functions and classes."""
    owner = attribute(fn, "__self__", None)
    of_pybind11 = type(owner).__name__ == "PyCapsule"  # what its functions belong to
    if is_a(fn, (type, types.FunctionType)) or is_a(owner, (types.ModuleType, type)) or of_pybind11:
        return None
    return owner if owner is not None or is_a(fn, types.BuiltinFunctionType) else fn


def _looks(value: Any, depth: int = _DEPTH) -> Any:
    """Return what two values have in common that are arguments of the same call: simple values, types and shapes."""
    kind, numpy = type(value), sys.modules.get("numpy")
    if is_exactly(value, *_SIMPLE):
        return value
    if numpy is not None and is_a(value, numpy.generic):
        return kind, value.item()
    if is_exactly(value, tuple, list) and depth and len(value) <= _ITEMS:
        return kind, tuple(_looks(one, depth - 1) for one in value)
    if kind is dict and depth and len(value) <= _ITEMS:
        return kind, tuple((_looks(key, 0), _looks(one, depth - 1)) for key, one in value.items())
    if is_a(value, (list, tuple, dict, set)):
        return kind, len(value)
    if _is_data(value):
        return kind, str(attribute(value, "dtype", attribute(value, "mode"))), tuple(attribute(value, "shape", ()))
    return kind


def _is_data(value: Any) -> bool:
    """Return whether a value is an array, a tensor or a picture in memory."""
    numpy, pillow = sys.modules.get("numpy"), sys.modules.get("PIL.Image")
    if is_a(value, torch.Tensor) or (numpy is not None and is_a(value, (numpy.ndarray, numpy.generic))):
        return True
    return pillow is not None and type(value) is pillow.Image


def _state(value: Any, depth: int = _DEPTH) -> Any:
    """Return a copy of data, and of other objects what shows most changes: which attributes they have, how long."""
    if _is_data(value):
        return value.clone() if is_a(value, torch.Tensor) else value.copy()
    if is_a(value, (list, tuple)) and depth and len(value) <= _ITEMS:
        return [_state(one, depth - 1) for one in value]
    if is_a(value, dict) and depth and len(value) <= _ITEMS:
        return [(id(key), _state(one, depth - 1)) for key, one in value.items()]
    if is_a(value, (list, tuple, dict, set, bytearray)):
        return len(value)
    held = attribute(value, "__dict__", None)
    if is_a(held, dict) and type(value).__module__.partition(".")[0] != "PIL":  # a picture is loaded when it is used
        return [(name, id(one), _state(one, 0) if is_a(one, (list, dict, set)) else 0) for name, one in held.items()]
    return None


def _reads_on(given: Any) -> bool:
    """Return whether a call may change what cannot be seen to change: a file, an iterator, a compiled object."""
    owner, args, kwargs = given
    seen = owner is None or _is_data(owner) or is_a(owner, _PLAIN) or has_attribute(owner, "__dict__")
    if not seen and type(owner).__module__.partition(".")[0] != "numpy":  # its random functions belong to such
        return True
    reached = [owner, *_inside(args), *_inside(kwargs)]
    return any(is_a(one, io.IOBase) or has_attribute(type(one), "__next__") for one in reached)


def _inside(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    yield value
    if is_a(value, (list, tuple, dict)) and depth and len(value) <= _ITEMS:
        for one in value.values() if is_a(value, dict) else value:
            yield from _inside(one, depth - 1)


def _share_memory(result: Any, given: Any) -> bool:
    """Return whether a result is, holds or is a view of what a call was given."""
    ours, theirs = [result, *tree.leaves(result)], [*tree.leaves(given)]
    objects = {id(one) for one in theirs if not is_exactly(one, *_SIMPLE)}
    if any(id(one) in objects for one in ours) or tree.share_memory(ours[1:], theirs):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and any(
        numpy.may_share_memory(one, other) for one in _arrays(numpy, ours) for other in _arrays(numpy, theirs)
    )


def _arrays(numpy: Any, leaves: list[Any]) -> list[Any]:
    """Return the arrays among leaves, and the tensors as arrays."""
    found = [one for one in leaves if is_a(one, numpy.ndarray)]
    for one in leaves:
        if is_a(one, torch.Tensor):
            with suppress(RuntimeError, TypeError):  # on a device, or of a type that numpy lacks
                found.append(one.detach().numpy())
    return found


def _copies_of(result: Any) -> tuple[int, Callable[[], Any]]:
    """Return a result's bytes, and a function that returns a new copy of it at each call.

    Raises:
        Unfit: no copy would be equal.
    """
    if not tree.is_user_dict(result):
        return copies_of(result)
    nbytes, again = copies_of(dict(result.data))  # what tokenizers and processors return

    def copied() -> Any:
        made = copy.copy(result)
        made.data = again()
        return made

    return nbytes, copied
