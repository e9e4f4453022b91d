"""Host the processes that a script or launcher starts and that may train, as ranks of a job or by themselves.

A rank is recognised by its command and environment, which ``subprocess.Popen`` is given; a script that starts itself
again by its command; a ``multiprocessing`` process, and what a pool of ``concurrent.futures`` is given, by its code.
Processes are also started for loading, logging and prediction, and those are left alone.
"""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from importlib import import_module
from multiprocessing.process import BaseProcess
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ..frames import is_users
from ..measure.own_rank import RANK_VARIABLES
from ..patches import replaced
from .hooks import patched
from .processes import ENTRY
from .script import PythonCommand, interpreter_of, is_this_python

#: Maximum number of functions of a process's target that are searched for training.
_LOOKED_THROUGH = 200
#: The module of the function with which torch starts processes; it runs the first of its arguments.
_SPAWN = "torch.multiprocessing.spawn"


class Hosted:
    """A function that runs hosted, in whichever process it is called; it is pickled with a process's arguments.

    ``words`` are the role of :mod:`pipediag.host.entry` in which it runs, with its arguments.
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
    with (
        hosting_relaunched(words, started, missed),
        _hosting_trainers(words, started),
        _hosting_submitted(words, started),
        _hosting_successor(words, started),
    ):
        yield


@contextmanager
def _hosting_successor(words: Sequence[str], started: Callable[[], None]) -> Iterator[None]:
    """Host the script that this process becomes by ``os.exec*``, as scripts do to begin again with other variables."""
    native, owner = os.execve, os.getpid()

    def execve(path: Any, args: Any, env: Mapping[Any, Any]) -> None:
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        ours = isinstance(path, (str, os.PathLike)) and os.getpid() == owner
        # A member ends with the process that started it, which stays the same.
        role = [words[0], str(os.getppid()), *words[2:]] if words[0] == "member" else words
        if hosted := hosted_command([path, *args[1:]], environment, True, role) if ours else None:
            started()
            path, args = hosted[0], hosted
        native(path, args, env)

    def execv(path: Any, args: Any) -> None:
        execve(path, args, os.environ)

    with replaced(os, "execve", execve), replaced(os, "execv", execv):
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
        elif _trains(target or type(self).run, self):
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


@contextmanager
def _hosting_submitted(words: Sequence[str], started: Callable[[], None]) -> Iterator[None]:
    """Host every function that this process submits to processes of ``concurrent.futures`` and that trains."""
    owner = os.getpid()

    def hosting(module: ModuleType) -> AbstractContextManager[None]:
        native = module.ProcessPoolExecutor.submit

        @wraps(native)
        def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            if os.getpid() == owner and _trains(fn, fn):
                started()
                fn = Hosted(words, fn)
            return native(self, fn, *args, **kwargs)

        return replaced(module.ProcessPoolExecutor, "submit", submit)

    with patched("concurrent.futures.process", hosting):
        yield


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


def _trains(target: Any, process: Any) -> bool:
    """Return whether a process will run a function of the script's own that trains.

    It uses the name ``backward``, itself or in script functions that it names, such as other methods of its class.
    """
    owner = type(getattr(target, "__self__", process))
    left = [one for one in [_users_function(target)] if one is not None]
    seen = {*left}
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


#: Modules that start the ranks of a job: their own environment names no rank yet.
LAUNCHERS = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
)
_LAUNCHER_COMMANDS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
#: Variables whose new value shows that a process is part of a job. accelerate sets the last one for a single process.
_TELLING = (*RANK_VARIABLES, "ACCELERATE_MIXED_PRECISION")
#: Commands that run another one, which follows their options.
_WRAPPERS = ("numactl",)


@contextmanager
def hosting_relaunched(
    words: Sequence[str], started: Callable[[], None], missed: Callable[[str], None]
) -> Iterator[None]:
    """Host the ranks that this process starts by ``subprocess``; see :func:`hosting_members`."""
    native = subprocess.Popen.__init__
    signature = inspect.signature(native)
    process = os.getpid()

    @wraps(native)  # keeps its signature, which a forked process that hosts its own reads
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if os.getpid() == process:
            args, kwargs = rewritten(self, args, kwargs)
        native(self, *args, **kwargs)

    def rewritten(popen: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            given = signature.bind(popen, *args, **kwargs).arguments
        except TypeError:  # Popen itself says so
            return args, kwargs
        command, env = given.get("args"), given.get("env")
        environment = os.environ if env is None else {os.fsdecode(k): os.fsdecode(v) for k, v in env.items()}
        is_rank = names_a_rank(environment)
        plain = not given.get("shell") and given.get("executable") is None
        hosted = hosted_command(command, environment, is_rank, words) if plain else None
        if hosted is None:
            if is_rank and "python" in (text := command if isinstance(command, str) else shlex.join(_words(command))):
                missed(text)
            return args, kwargs
        started()
        return ((hosted, *args[1:]), kwargs) if args else (args, {**kwargs, "args": hosted})

    with replaced(subprocess.Popen, "__init__", initialize):
        yield


def names_a_rank(environment: Mapping[str, str]) -> bool:
    """Return whether a process's environment makes it another rank than this process is."""
    return any(environment.get(name, os.environ.get(name)) != os.environ.get(name) for name in _TELLING)


def hosted_command(
    command: object, environment: Mapping[str, str], is_rank: bool, words: Sequence[str]
) -> list[str] | None:
    """Return the command that runs the same script hosted, or None if it is to be left alone."""
    given = _words(command)
    if not given:
        return None
    wrapper, inner = _unwrapped(given)
    path = environment.get("PATH")
    script = PythonCommand.of(inner)
    if script is not None and is_this_python(script.interpreter, path):
        launches = script.target[0] == "-m" and script.target[1] in LAUNCHERS
        if not (is_rank or launches or _is_this_script(script.target)) or script.target[0] == ENTRY:
            return None
        return [*wrapper, script.interpreter, *script.flags, ENTRY, *words, *script.target]
    found = shutil.which(inner[0], path=path) if os.path.basename(inner[0]) in _LAUNCHER_COMMANDS else None
    python = interpreter_of(found) if found is not None else None
    if found is None or python is None or not is_this_python(python, path):
        return None
    return [*wrapper, python, ENTRY, *words, found, *inner[1:]]


def _is_this_script(target: Sequence[str]) -> bool:
    """Return whether a target is the script of this process with the same arguments, which begins again."""
    if target[0] == "-m":
        own = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
        return own.removesuffix(".__main__") == target[1] and [*target[2:]] == sys.argv[1:]
    own = os.path.realpath(sys.argv[0]) if sys.argv else ""
    return own == os.path.realpath(target[0]) and [*target[1:]] == sys.argv[1:]


def _unwrapped(command: list[str]) -> tuple[list[str], list[str]]:
    """Return the words that wrap a command, and the command itself."""
    if os.path.basename(command[0]) not in _WRAPPERS:
        return [], command
    inner = 1
    while inner < len(command) - 1 and (command[inner].startswith("-") or shutil.which(command[inner]) is None):
        inner += 1
    return command[:inner], command[inner:]


def _words(command: object) -> list[str]:
    """Return the words of a command given as a list; none for any other."""
    if isinstance(command, (str, bytes, os.PathLike)) or not isinstance(command, Sequence):
        return []
    if not all(isinstance(word, (str, bytes, os.PathLike)) for word in command):  # Popen itself says so
        return []
    return [os.fsdecode(word) for word in command]
