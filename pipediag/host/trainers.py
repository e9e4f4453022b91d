"""Find the processes that the script starts for training: their loaders cannot be measured from its own process."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ..frames import is_users
from ..patches import replaced
from .hooks import when_imported

#: Maximum number of functions of a process's target that are searched for training.
_LOOKED_THROUGH = 200


@contextmanager
def reporting_trainers(report: Callable[[str], None]) -> Iterator[None]:
    """Report function and place of every ``multiprocessing`` process that the script starts for training.

    Whether a process trains is read from its code, since processes are also started for loading, logging and
    prediction.
    """
    patch = ExitStack()

    def install(module: ModuleType) -> None:
        process_class = module.BaseProcess
        native = process_class.start

        def start(self: Any) -> None:
            trainer = _trainer_in(self)  # before it starts: the process then forgets its target
            native(self)
            if trainer is not None:
                code = trainer.__code__
                report(f"{trainer.__name__}, {os.path.basename(code.co_filename)}:{code.co_firstlineno}")

        patch.enter_context(replaced(process_class, "start", start))

    with patch, when_imported("multiprocessing.process", install):
        yield


def _trainer_in(process: Any) -> FunctionType | None:
    """Return the script's own function that a process will run, if it trains."""
    target = getattr(process, "_target", None) or type(process).run
    if getattr(target, "__module__", "") == "torch.multiprocessing.spawn":  # runs the first of its arguments
        target = process._args[0]
    owner = type(getattr(target, "__self__", process))
    function = _users_function(target)
    return function if function is not None and _trains(function, owner) else None


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
