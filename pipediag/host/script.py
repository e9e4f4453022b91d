"""Run a script or module as if Python had been started with it.

``runpy.run_path`` is unsuitable: it clears its module at the end, and classes in that module cannot be pickled for
spawned workers. Here ``__main__`` is a real module that stays.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.machinery import PathFinder
from types import CodeType, ModuleType

from ..errors import UsageError


class NoSuchModule(UsageError):
    """There is no runnable module of the given name."""


@dataclass(frozen=True)
class Target:
    """The script to run: its path, or with ``module`` a module's dotted name; its arguments, and flags of Python's."""

    name: str
    args: list[str] = field(default_factory=list)
    module: bool = False
    flags: tuple[str, ...] = ()

    @classmethod
    def named(cls, name: str, args: list[str], module: bool = False) -> Target:
        """Return the target that a user names: a script, a console script such as torchrun, or ``python ...``.

        Raises:
            UsageError: it is no Python script, or belongs to another Python.
        """
        if module or (os.path.isfile(name) and not is_named_python(name)):
            return cls(name, args, module)
        # An environment that is not activated is not on PATH.
        found = shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))
        if found is None or os.path.isdir(name):
            return cls(name, args)
        if is_named_python(name):
            _check_python(name, found)
            command = PythonCommand.of([name, *args])
            if command is None:
                raise UsageError(f"{name} is given no script: name one, or a module with -m")
            return replace(cls.of([*command.target]), flags=command.flags)
        python = interpreter_of(found)
        if python is None:
            raise UsageError(f"{found} is not a Python script; give the script that it runs, or a module with -m")
        _check_python(found, python)
        return cls(os.path.abspath(found), args)

    def absolute(self) -> Target:
        """Return the target with a path that is valid in any working folder."""
        return self if self.module else replace(self, name=os.path.abspath(self.name))

    @classmethod
    def of(cls, argv: list[str]) -> Target:
        """Return the target that a command line names; see :attr:`argv`."""
        module = argv[0] == "-m"
        return cls(argv[1] if module else argv[0], argv[2:] if module else argv[1:], module)

    @property
    def argv(self) -> list[str]:
        return (["-m"] if self.module else []) + [self.name, *self.args]

    def check(self) -> None:
        """Check the target before an interpreter is started.

        Raises:
            UsageError: there is no such script.
            NoSuchModule: there is no such module.
        """
        if self.module:
            if _certainly_missing(self.name):
                raise NoSuchModule(f"no module named {self.name} in this folder or on Python's path")
            return
        if not os.path.exists(self.name):
            raise UsageError(f"no such script: {self.name}")
        if os.path.isdir(self.name):
            raise UsageError(f"{self.name} is a directory; give a script, or a package with -m")
        if os.path.isfile(self.name) and zipfile.is_zipfile(self.name):  # a pipe can be read only once
            raise UsageError(f"{self.name} is a zip archive; unpack it, and give the script in it")


def _certainly_missing(module: str) -> bool:
    """Return whether a module is not there, as far as can be known without importing its packages."""
    top, *below = module.split(".")
    found = PathFinder.find_spec(top, [os.getcwd()]) or importlib.util.find_spec(top)
    for count in range(1, len(below) + 1):
        if found is None:
            return True
        if not found.origin or not os.path.isfile(found.origin):  # its parts may lie anywhere
            return False
        with open(found.origin, "rb") as code:
            if b"__path__" in code.read():  # it may change where they lie
                return False
        found = PathFinder.find_spec(".".join([top, *below[:count]]), found.submodule_search_locations or [])
    return found is None


def _check_python(named: str, python: str) -> None:
    if not is_this_python(python):
        other = f"{named} is run by" if is_named_python(python) and not is_named_python(named) else f"{named} is"
        raise UsageError(
            f"{other} another Python ({shutil.which(python) or python}) than pipediag ({sys.executable}): "
            "install pipediag there"
        )


def compiled(source: bytes, path: str) -> CodeType:
    return compile(source, path, "exec", dont_inherit=True)


def run(target: Target, compiling: Callable[[bytes, str], CodeType] = compiled) -> None:
    """Execute the target as ``__main__``. Its exceptions propagate unchanged.

    ``compiling`` makes the code of a script from its source and path.

    Raises:
        NoSuchModule: there is nothing to execute.
    """
    module, code = _from_module(target) if target.module else _from_path(target, compiling)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    exec(code, module.__dict__)


def _from_path(target: Target, compiling: Callable[[bytes, str], CodeType]) -> tuple[ModuleType, CodeType]:
    path = os.path.abspath(target.name)
    sys.argv = [target.name, *target.args]
    _put_first(os.path.dirname(os.path.realpath(path)))
    with io.open_code(path) as file:
        code = compiling(file.read(), path)
    main = _main_module(path)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    return main, code


def _from_module(target: Target) -> tuple[ModuleType, CodeType]:
    _put_first(os.getcwd())
    sys.argv = ["-m", *target.args]
    spec = _find(target.name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find(f"{target.name}.__main__")
    get_code = getattr(spec.loader if spec else None, "get_code", None)
    if spec is None or get_code is None:
        raise NoSuchModule(f"no runnable module named {target.name}; python -m {target.name} says more")
    code = get_code(spec.name)
    main = _main_module(spec.origin)
    main.__spec__, main.__loader__ = spec, spec.loader
    main.__package__ = spec.parent
    main.__dict__["__cached__"] = spec.cached
    sys.argv[0] = spec.origin or target.name
    return main, code


def _put_first(folder: str) -> None:
    """Replace the first entry of the path, which is ours; under ``python -P`` just remove it."""
    if getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    else:
        sys.path[0] = folder
        forget_hidden(folder)


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            return None
        raise


def _main_module(file: str | None) -> ModuleType:
    main = ModuleType("__main__")
    main.__package__ = None
    main.__dict__.update(__builtins__=__builtins__, __annotations__={}, __cached__=None)
    if file is not None:
        main.__file__ = file
    return main


#: Modules that Python itself has imported before any script begins.
_NATIVE = {"os", "io", "abc", "codecs", "encodings", "stat", "site", "posixpath", "genericpath", "zipimport"}


@contextmanager
def script_aside() -> Iterator[None]:
    """Let imports within the context find the standard library, and give the script its own modules back."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    folders = {os.path.dirname(os.path.realpath(script)), os.path.realpath(os.curdir)}
    folders = {folder for folder in folders if not _is_standard(folder)}  # the script may be a module such as cProfile
    hiding = {name: module for name, module in sys.modules.items() if _hides(name, folders)}
    if not hiding and not any(_would_hide(folder) for folder in folders):
        yield
        return
    path = list(sys.path)
    sys.path[:] = [one for one in path if os.path.realpath(one or os.curdir) not in folders]
    before = {*sys.modules}
    for name in hiding:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.path[:] = path + [one for one in sys.path if one not in path]
        names = {_top(name) for name in hiding} | {name for folder in folders for name in _would_hide(folder)}
        for name in [one for one in sys.modules if one not in before or one in hiding]:
            if _top(name) in names:
                del sys.modules[name]
        sys.modules.update(hiding)


def forget_hidden(folder: str) -> None:
    """Forget modules of the standard library that pipediag has imported and that the script's folder hides."""
    hidden = _would_hide(folder) - _NATIVE - {*sys.builtin_module_names}
    for name in [one for one in sys.modules if _top(one) in hidden]:
        del sys.modules[name]


def _hides(name: str, folders: set[str]) -> bool:
    """Return whether a module, or the package that it is in, stands in place of one of the standard library."""
    file = getattr(sys.modules.get(_top(name)), "__file__", None) or ""
    folder = os.path.dirname(os.path.realpath(file))
    return _top(name) in sys.stdlib_module_names and file != "" and bool({folder, os.path.dirname(folder)} & folders)


def _would_hide(folder: str) -> set[str]:
    """Return the names of the standard library's modules that a folder has files or packages for."""
    try:
        names = {name.removesuffix(".py") for name in os.listdir(folder or os.curdir)}
    except OSError:
        return set()
    return names & sys.stdlib_module_names if not _is_standard(folder) else set()


def _is_standard(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "os.py"))


def _top(name: str) -> str:
    return name.partition(".")[0]


#: Flags of Python's that take the next word as their value if it is not attached.
_WITH_VALUE = "WX"
_LONG_WITH_VALUE = ("--check-hash-based-pycs",)
_PYTHON = re.compile(r"^(python|pypy)[0-9.]*$")


@dataclass(frozen=True)
class PythonCommand:
    """A command that runs a script, or with ``-m`` a module, with the words before it."""

    interpreter: str
    flags: tuple[str, ...]  # the interpreter's own
    target: tuple[str, ...]  # the script and its arguments, or ``-m``, the module and its arguments

    @classmethod
    def of(cls, words: Sequence[str]) -> PythonCommand | None:
        """Return the command that the words form; None if it runs no script or module."""
        flags = 1
        while flags < len(words) and words[flags].startswith("-") and words[flags] != "-":
            word = words[flags]
            if word == "-m":
                return cls(words[0], tuple(words[1:flags]), tuple(words[flags:])) if flags + 1 < len(words) else None
            if word.startswith("--"):
                flags += 2 if word in _LONG_WITH_VALUE else 1
                continue
            if "c" in word or "m" in word.partition("W")[0].partition("X")[0]:  # code, or a module in one word: -um
                return None
            flags += 2 if word[-1] in _WITH_VALUE and not set(word[1:-1]) & set(_WITH_VALUE) else 1
        if flags >= len(words) or words[flags] == "-":
            return None
        return cls(words[0], tuple(words[1:flags]), tuple(words[flags:]))


def is_named_python(word: str) -> bool:
    return _PYTHON.match(os.path.basename(word)) is not None


def is_this_python(word: str, path: str | None = None) -> bool:
    """Return whether a command is this interpreter, with the same packages.

    ``path`` is where to look for it; None: as in ``PATH``.
    """
    found = shutil.which(word, path=path)
    return found is not None and _installation(found) == _installation(sys.executable)


def interpreter_of(script: str) -> str | None:
    """Return the interpreter that a Python script names in its first lines; None if it is no Python script."""
    try:
        with open(script, "rb") as file:
            first, second = (file.readline(4096).decode(errors="replace").strip() for _ in range(2))
    except OSError:
        return None
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    if words[:1] and os.path.basename(words[0]) == "sh" and second.startswith("'''exec'"):  # pip's, for long paths
        words = second.removeprefix("'''exec'").replace('"', " ").split()
    elif words[:1] and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words[:1] and is_named_python(words[0]) else None


@cache
def _installation(interpreter: str) -> str:
    """Return what identifies an interpreter's packages: its virtual environment, or its real file."""
    folder = os.path.dirname(os.path.abspath(interpreter))
    environment = os.path.dirname(folder)
    if os.path.exists(os.path.join(environment, "pyvenv.cfg")):
        return os.path.realpath(environment)
    return os.path.realpath(interpreter)
