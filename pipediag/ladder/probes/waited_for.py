"""Find the threads that make what a thread waits for: those that fill its queue, or that run the tasks of its pool."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import queue
import threading
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

from ...frames import is_users

#: Files of functions that wait for other threads.
_WAITING = frozenset(module.__file__ for module in (threading, queue, concurrent.futures._base))
_GET, _RESULT = queue.Queue.get.__code__, concurrent.futures.Future.result.__code__
_RUNS_TASKS = concurrent.futures.thread._worker.__code__
#: Maximum number of threads that wait for each other: a reader for its pool, the loop for the reader.
_DEPTH = 3


def working_for(waiting: FrameType, others: Mapping[int, FrameType], depth: int = _DEPTH) -> list[FrameType]:
    """Return the innermost frames of the threads that work for a waiting one, all by their identity in ``others``.

    Empty if it does not wait, or for something that cannot be known, such as another process.
    """
    calls = [frame for frame in stack_of(waiting) if frame.f_code in (_GET, _RESULT)]
    if waiting.f_code.co_filename not in _WAITING or not calls or not depth:
        return []
    call, found = calls[0], list[FrameType]()
    for thread, frame in others.items():
        if call.f_code is _GET:
            theirs = any(_holds(one, call.f_locals.get("self")) for one in stack_of(frame))
        else:
            theirs = any(one.f_code is _RUNS_TASKS for one in stack_of(frame))
        if not theirs:
            continue
        if frame.f_code.co_filename in _WAITING:
            rest = {other: inner for other, inner in others.items() if other != thread}
            found += working_for(frame, rest, depth - 1)
        elif any(is_users(one.f_code.co_filename) for one in stack_of(frame)):
            found.append(frame)
    return found


def _holds(frame: FrameType, wanted: Any) -> bool:
    """Return whether a function of the user's has an object in a variable, or in an attribute of one."""
    if not is_users(frame.f_code.co_filename):
        return False
    values = [*frame.f_locals.values()]
    return any(value is wanted or any(inner is wanted for inner in _attributes(value)) for value in values)


def _attributes(value: Any) -> list[Any]:
    """Return the values of an object's attributes; its class's own code does not run."""
    try:
        return [*object.__getattribute__(value, "__dict__").values()]
    except (AttributeError, RuntimeError):  # it has none, or they change meanwhile
        return []


def stack_of(frame: Any) -> Iterator[FrameType]:
    """Yield a thread's frames from the innermost outwards.

    CPython 3.11 may give anything in place of a frame that ends meanwhile, or of its code: the stack ends there.
    """
    while type(frame) is FrameType and type(frame.f_code) is CodeType:
        yield frame
        frame = frame.f_back
