"""Run a script or module as if Python had been started with it.

``runpy.run_path`` is unsuitable: it clears its module at the end, and classes in that module cannot be pickled for
spawned workers. Here ``__main__`` is a real module that stays.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import shutil
import sys
import zipfile
from dataclasses import dataclass, field, replace
from types import CodeType, ModuleType

from ..errors import UsageError
from .own_imports import forget_hidden
from .ranks.python_commands import PythonCommand, interpreter_of, is_named_python, is_this_python


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
        """
        if self.module:
            return
        if self.name.startswith("-") and not os.path.exists(self.name):
            raise UsageError(f"no such option: {self.name} (put options before the script; see --help)")
        if not os.path.exists(self.name):
            raise UsageError(f"no such script: {self.name}")
        if os.path.isdir(self.name):
            raise UsageError(f"{self.name} is a directory; give a script, or a package with -m")
        if os.path.isfile(self.name) and zipfile.is_zipfile(self.name):  # a pipe can be read only once
            raise UsageError(f"{self.name} is a zip archive; unpack it, and give the script in it")


def _check_python(named: str, python: str) -> None:
    if not is_this_python(python):
        other = f"{named} is run by" if is_named_python(python) and not is_named_python(named) else f"{named} is"
        raise UsageError(
            f"{other} another Python ({shutil.which(python) or python}) than pipediag ({sys.executable}): "
            "install pipediag there"
        )


def run(target: Target) -> None:
    """Execute the target as ``__main__``. Its exceptions propagate unchanged.

    Raises:
        NoSuchModule: there is nothing to execute.
    """
    module, code = _from_module(target) if target.module else _from_path(target)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    exec(code, module.__dict__)


def _from_path(target: Target) -> tuple[ModuleType, CodeType]:
    path = os.path.abspath(target.name)
    sys.argv = [target.name, *target.args]
    _put_first(os.path.dirname(os.path.realpath(path)))
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
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
