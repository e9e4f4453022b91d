"""Read what other threads run: their stacks and variables, in one piece.

CPython before 3.12 may collect garbage while it makes the object of another thread's frame. A destructor then lets that
thread run, its frame ends, and the new object refers to memory that is used again: the process crashes or never goes
on. So no garbage is collected meanwhile, and all is done by C functions, between which no other thread runs. Without
the interpreter's lock (a free-threaded build) that cannot be had, and nothing is read.
"""

from __future__ import annotations

import collections
import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import CO_NEWLOCALS
from itertools import repeat
from types import CodeType, FrameType
from typing import Any, NamedTuple

#: Maximum number of frames that are read at once.
_FRAMES = 10_000
#: Functions that, before Python 3.13, use the very dictionary in which a frame's variables are read.
_SEES_LOCALS = frozenset({"locals", "vars", "exec", "eval"})

_has_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
_Step = Callable[[], Any]
#: The code of a frame, the offset of its instruction, and the globals that it sees.
At = tuple[CodeType, int, dict[str, Any]]


class Running(NamedTuple):
    """What a thread runs, from the innermost frame outwards."""

    places: list[At]
    frames: list[FrameType]


def stack_of(thread: int, depth: int = _FRAMES) -> list[At]:
    """Return another thread's ``depth`` innermost frames, from these outwards; empty if the thread has ended."""
    tops, frames = list[dict[int, FrameType]](), list[FrameType]()
    innermost = map(dict.get, tops, [thread])
    # A frame that was kept would keep its variables, and drop them in this thread.
    return _read(tops, frames, innermost, depth - 1, [frames.clear, _each(map(dict.clear, tops))])


def running() -> dict[int, Running]:
    """Return what all threads but the calling one run, by the threads' identities."""
    tops, frames, outer = list[dict[int, FrameType]](), list[FrameType](), list[Any]()
    innermost = itertools.chain.from_iterable(map(dict.values, tops))
    places = _read(tops, frames, innermost, _FRAMES, [partial(outer.extend, map(getattr, frames, repeat("f_back")))])
    read = {id(frame): (at, frame, back) for at, frame, back in zip(places, frames, outer, strict=True)}
    found = dict[int, Running]()
    for thread, frame in tops[0].items():
        one = found[thread] = Running([], [])
        while id(frame) in read:
            at, inner, frame = read[id(frame)]
            one.places.append(at)
            one.frames.append(inner)
    return found


def variables(frames: Sequence[FrameType]) -> list[dict[str, Any]]:
    """Return a copy of the variables of each frame that runs a function; none where that could change what it does."""
    read = [one for one in frames if one.f_code.co_flags & CO_NEWLOCALS and not _SEES_LOCALS & {*one.f_code.co_names}]
    found, copies = list[Any](), list[dict[str, Any]]()
    steps: list[_Step] = [
        partial(found.extend, map(getattr, read, repeat("f_locals"))),
        partial(copies.extend, map(dict, found)),
    ]
    if sys.version_info < (3, 13):  # the frame would keep what its variables were
        steps.append(_each(map(dict.clear, found)))
    _at_once(steps)
    return copies


def _read(
    tops: list[dict[int, FrameType]],
    frames: list[FrameType],
    innermost: Iterable[Any],
    most: int,
    steps: Sequence[_Step],
) -> list[At]:
    """Return where the innermost frames and at most ``most`` outer ones are; put them into ``frames``, run ``steps``.

    ``tops`` gets one dictionary of the innermost frames of all threads but the calling one, whose frames would hold
    themselves, and with them all others, until garbage is collected.
    """
    places = list[At]()
    if not _has_lock():
        tops.append({})
        return places
    outer = filter(None, map(getattr, frames, repeat("f_back")))  # reads what it adds to ``frames``
    fields = (map(getattr, frames, repeat(name)) for name in ("f_code", "f_lasti", "f_globals"))
    begin: list[_Step] = [
        partial(tops.extend, _results([sys._current_frames])),
        _each(map(dict.pop, tops, [threading.get_ident()], [None])),
        partial(frames.extend, filter(None, innermost)),
        partial(frames.extend, itertools.islice(outer, most)),
        partial(places.extend, zip(*fields, strict=False)),
    ]
    _at_once([*begin, *steps])
    return places


def _at_once(steps: Sequence[_Step]) -> None:
    """Call functions in C one after the other, before any other thread runs, and without collecting garbage."""
    if sys.version_info >= (3, 12):  # garbage is collected between instructions only
        _each(_results(steps))()
        return
    enabled = list[bool]()
    begin = [partial(enabled.extend, _results([gc.isenabled])), gc.disable]
    end = _each(_results(itertools.compress([gc.enable], enabled)))
    try:
        _each(_results([*begin, *steps, end]))()
    except BaseException:
        end()
        raise


def _results(calls: Any) -> Any:
    """Return the results of functions as they are called, without an instruction of the interpreter in between."""
    return map(partial.__call__, map(partial, calls))


def _each(results: Any) -> _Step:
    return partial(collections.deque[Any](maxlen=0).extend, results)
