"""Host the processes that a script or launcher starts and that may train, as ranks of a job or by themselves.

A rank is recognised by its command and environment (:mod:`.relaunched`), a ``multiprocessing`` process by its code:
processes are also started for loading, logging and prediction, and those are left alone.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from multiprocessing.process import BaseProcess
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ...frames import is_users
from ...patches import replaced
from .relaunched import hosting_relaunched

#: Maximum number of functions of a process's target that are searched for training.
_LOOKED_THROUGH = 200
#: The module of the function with which torch starts processes; it runs the first of its arguments.
_SPAWN = "torch.multiprocessing.spawn"


class Hosted:
    """A function that runs hosted, in whichever process it is called; it is pickled with a process's arguments.

    Args:
        words: the role of :mod:`pipediag.host.entry` in which it runs, with its arguments.
    """

    def __init__(self, words: Sequence[str], function: Callable[..., Any]) -> None:
        self._words, self._function = list(words), function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        role = import_module(f"pipediag.host.{self._words[0]}")
        return role.host(self._words[1:], partial(self._function, *args, **kwargs))


@contextmanager
def hosting_members(
    words: Sequence[str], missed: Callable[[str], None], started: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Host what this process starts within the context; its members host theirs in turn.

    Args:
        words: the role of :mod:`pipediag.host.entry` in which they run, with its arguments.
        missed: called with the command of a process that trains but cannot be hosted.
        started: called for each member.
    """
    with hosting_relaunched(words, started, missed), _hosting_trainers(words, started):
        yield


@contextmanager
def _hosting_trainers(words: Sequence[str], started: Callable[[], None]) -> Iterator[None]:
    """Host every ``multiprocessing`` process that this process starts for training.

    Those of ``torch.multiprocessing.spawn`` always count.
    """
    native = BaseProcess.start
    owner = os.getpid()

    def start(self: Any) -> None:
        if os.getpid() != owner or not hasattr(self, "_target"):  # torch or Python says what is wrong with it
            native(self)
            return
        target, args = self._target, self._args
        if getattr(target, "__module__", "") == _SPAWN and args:
            # Inside torch's own function, which turns errors into its report.
            self._args = (Hosted(words, args[0]), *args[1:])
        elif _trains_in(self):
            self.run = Hosted(words, partial(type(self).run, self))
        else:
            native(self)
            return
        started()
        try:
            native(self)
        finally:
            vars(self).pop("run", None)

    with replaced(BaseProcess, "start", start):
        yield


def _trains_in(process: Any) -> bool:
    """Return whether a process will run a function of the script's own that trains."""
    target = process._target or type(process).run
    owner = type(getattr(target, "__self__", process))
    function = _users_function(target)
    return function is not None and _trains(function, owner)


def _users_function(obj: Any) -> FunctionType | None:
    """Return the function behind a callable, or None if it is not the script's own: libraries are not searched."""
    if isinstance(obj, partial):
        obj = obj.func
    if isinstance(obj, (MethodType, staticmethod, classmethod)):
        obj = obj.__func__
    if not isinstance(obj, FunctionType):
        return None
    function = inspect.unwrap(obj)
    if not isinstance(function, FunctionType):
        return None
    return function if is_users(function.__code__.co_filename) else None


def _trains(function: FunctionType, owner: type) -> bool:
    """Return whether the function uses the name ``backward``, itself or in script functions that it names.

    ``owner`` is the class whose other methods it may call.
    """
    left, seen = [function], {function}
    while left:
        one = left.pop()
        names = one.__code__.co_names
        if "backward" in names:
            return True
        called = [one.__globals__.get(name) for name in names]
        holders = [owner, *(holder for holder in called if isinstance(holder, (type, ModuleType)))]
        called += [vars(holder).get(name) for holder in holders for name in names]
        for callee in map(_users_function, called):
            if callee is not None and callee not in seen and len(seen) < _LOOKED_THROUGH:
                seen.add(callee)
                left.append(callee)
    return False
