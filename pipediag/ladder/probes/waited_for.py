"""Find the threads that make what a thread waits for: those that fill its queue, or that run the tasks of its pool."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ...frames import is_users
from .stacks import At, Running, variables

#: Files of functions that wait for other threads.
_WAITING = frozenset(module.__file__ for module in (threading, queue, concurrent.futures._base))
_GET, _RESULT = queue.Queue.get.__code__, concurrent.futures.Future.result.__code__
_RUNS_TASKS = concurrent.futures.thread._worker.__code__
#: Maximum number of threads that wait for each other: a reader for its pool, the loop for the reader.
_DEPTH = 3
_NOTHING = Running([], [])


def working_for(thread: int, threads: Mapping[int, Running], depth: int = _DEPTH) -> list[list[At]]:
    """Return the stacks of those among all ``threads`` that work for one of them, which waits.

    Empty if it does not wait, or for something that cannot be known, such as another process.
    """
    waiting = threads.get(thread, _NOTHING)
    calls = [frame for frame in waiting.frames if frame.f_code in (_GET, _RESULT)]
    if not waits(waiting.places) or not calls or not depth:
        return []
    gets = calls[0].f_code is _GET
    wanted = variables(calls[:1])[0].get("self") if gets else None
    found, others = list[list[At]](), {other: one for other, one in threads.items() if other != thread}
    for other, one in others.items():
        users = [frame for frame in one.frames if is_users(frame.f_code.co_filename)]
        if gets:
            works = any(_holds(seen, wanted) for seen in variables(users))
        else:
            works = any(frame.f_code is _RUNS_TASKS for frame in one.frames)
        if works and waits(one.places):
            found += working_for(other, others, depth - 1)
        elif works and users:
            found.append(one.places)
    return found


def waits(stack: Sequence[At]) -> bool:
    """Return whether a thread waits for another one."""
    return bool(stack) and stack[0][0].co_filename in _WAITING


def _holds(seen: Mapping[str, Any], wanted: Any) -> bool:
    """Return whether an object is in one of these variables, or in an attribute of one."""
    return any(value is wanted or any(inner is wanted for inner in _attributes(value)) for value in seen.values())


def _attributes(value: Any) -> list[Any]:
    """Return the values of an object's attributes; its class's own code does not run."""
    try:
        return [*object.__getattribute__(value, "__dict__").values()]
    except (AttributeError, RuntimeError):  # it has none, or they change meanwhile
        return []
