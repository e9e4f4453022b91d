"""What the user's code is called, and on which line it is defined or running."""

from __future__ import annotations

import functools
import inspect
import json
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import pipediag.demo.train
import pipediag.ladder.workers.worker_side
from pipediag import frames
from pipediag.frames import is_users
from pipediag.session import Place
from pipediag.usercode import places
from pipediag.usercode.places import caller, label, link_of, place_of, placed

from ..things import Double


class TestIsUsers:
    def test_this_file(self) -> None:
        assert is_users(__file__)

    @pytest.mark.parametrize("module", [json, torch, torch.nn, np, v2, pytest, pipediag.ladder.workers.worker_side])
    def test_libraries_are_not(self, module: Any) -> None:
        assert not is_users(module.__file__)

    def test_the_demo_is(self) -> None:
        assert is_users(pipediag.demo.train.__file__)

    @pytest.mark.parametrize("file", ["<string>", "<frozen importlib._bootstrap>", "/x/dist-packages/y.py"])
    def test_others_are_not(self, file: str) -> None:
        assert not is_users(file)


def a_function(x: Any) -> Any:
    return x


class Outer:
    class Inner:
        def __call__(self, x: Any) -> Any:
            return x

    def method(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    "fn, name",
    [
        (Double(), "Double"),
        (a_function, "a_function"),
        (lambda x: x, "<lambda>"),
        (Outer.Inner(), "Outer.Inner"),
        (Outer().method, "Outer.method"),
        (functools.partial(a_function), "a_function"),
        (functools.partial(functools.partial(Double())), "Double"),
        (torch.nn.ReLU(), "ReLU"),
        (len, "len"),
    ],
)
def test_label(fn: Any, name: str) -> None:
    assert label(fn) == name


def test_label_of_what_is_defined_inside_a_function() -> None:
    class Local:
        def __call__(self, x: Any) -> Any:
            return x

    def local(x: Any) -> Any:
        return x

    assert [label(Local()), label(local), label(lambda x: x)] == ["Local", "local", "<lambda>"]


def test_label_of_a_function_of_torchs() -> None:
    assert label(torch.add) == "add"


class TestPlaceOf:
    def test_torchs_own_have_no_place_of_interest(self) -> None:
        assert place_of(torch.utils.data.default_collate) == Place("torch's default_collate")
        assert place_of(torch.nn.ReLU()) == Place("torch's ReLU")

    def test_the_users(self) -> None:
        first = inspect.getsourcelines(a_function)[1]
        assert place_of(functools.partial(a_function)) == Place("a_function", f"{places.short(__file__)}:{first}")

    def test_without_a_source(self) -> None:
        assert place_of(len) == Place("len")

    def test_a_decorated_function_is_where_it_is_written(self) -> None:
        @functools.wraps(a_function)
        def decorated(x: Any) -> Any:
            return a_function(x)

        assert place_of(decorated) == place_of(a_function)


class Plain:
    """Nothing of its own."""


class Inheriting(Double):
    """Its methods are in another file."""


def added(cls: type) -> type:
    """A class decorator of another file's, as far as the class can tell."""
    made: dict[str, Any] = {}
    exec(compile("def extra(self):\n    return 1\n", places.__file__, "exec"), made)
    cls.extra = made["extra"]  # type: ignore[attr-defined]
    return cls


@added
class Extended:
    kind = "extended"

    def __call__(self, x: Any) -> Any:
        return x


@dataclass
class Generated:
    """The methods are generated: they have no file."""

    size: int = 0


MADE = type("Made", (Double,), {})


def statement(name: str) -> int:
    """The line of a class statement in this file."""
    (found,) = (n for n, line in enumerate(linecache.getlines(__file__), 1) if line.strip().startswith(f"class {name}"))
    return found


@pytest.fixture
def nothing_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a source file is parsed."""

    def parses(*_: Any, **__: Any) -> Any:
        raise AssertionError("a source file was parsed")

    monkeypatch.setattr(inspect, "getsourcelines", parses)
    monkeypatch.setattr(inspect, "findsource", parses)
    monkeypatch.setattr(inspect, "getmodule", parses)
    monkeypatch.setattr("ast.parse", parses)
    monkeypatch.setattr(places, "_CLASSES", type(places._CLASSES)())


@pytest.mark.usefixtures("nothing_parsed")
class TestLinesOfClasses:
    @pytest.mark.parametrize("cls", [Plain, Inheriting, Extended, Generated, Outer, Outer.Inner])
    def test_a_class_statement_is_found(self, cls: type) -> None:
        assert placed("it", cls) == Place("it", f"{places.short(__file__)}:{statement(cls.__name__)}")

    def test_a_class_without_a_statement_has_no_line(self) -> None:
        assert link_of(MADE()).where == ""

    def test_of_several_statements_the_one_above_the_methods(self) -> None:
        if True:

            class Twice:
                def __call__(self, x: Any) -> Any:
                    return x

        first, line = Twice, inspect.currentframe().f_lineno - 4  # type: ignore[union-attr]

        class Twice:  # type: ignore[no-redef]
            pass

        assert placed("", first).where == f"{places.short(__file__)}:{line}"
        assert placed("", Twice).where == "", "it has no method to tell it by"

    def test_each_class_is_looked_for_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read: list[str] = []
        native = linecache.getlines
        monkeypatch.setattr(linecache, "getlines", lambda file, *more: read.append(file) or native(file, *more))
        found = [link_of(thing).where for _ in range(5) for thing in (Inheriting(), MADE())]
        assert len(read) == 2
        assert found[:2] * 5 == found

    def test_a_class_of_a_long_module_that_is_no_file(self) -> None:
        cls = type("Gone", (), {"__module__": "a_module_that_is_not_there"})
        assert placed("Gone", cls) == Place("Gone")

    def test_from_its_own_line_number(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """As Python 3.13 gives it: that of the first decorator."""
        file = tmp_path / "m.py"
        file.write_text("class A:\n    pass\n\n\n@some\n@thing\nclass A:\n    pass\n")
        module = types.ModuleType("m")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "m", module)
        cls = type("A", (), {"__module__": "m", "__firstlineno__": 5})
        assert placed("", cls).where == f"{file}:7"

    def test_a_cells(self) -> None:
        """A notebook's module has no file, but its methods are in a cell."""
        cell = "size = 3\n\nclass InACell:\n    def __call__(self, x):\n        return x\n"
        linecache.cache["<cell 7>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 7>")
        try:
            made: dict[str, Any] = {"__name__": "a_notebook"}
            exec(compile(cell, "<cell 7>", "exec"), made)
            assert placed("", made["InACell"]).where == "<cell 7>:3"
        finally:
            del linecache.cache["<cell 7>"]

    def test_generated_functions_have_no_line(self) -> None:
        assert placed("", eval("lambda x: x")) == Place("")


class TestLibraries:
    """A library's place is relative to its package."""

    def test_an_installed_one(self) -> None:
        place = placed("it", ImageFolder.__getitem__)
        assert place.library
        file, _, line = place.where.rpartition(":")
        assert file == "torchvision/datasets/folder.py"
        assert int(line) == inspect.getsourcelines(ImageFolder.__getitem__)[1]

    def test_one_in_an_environment_below_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
        assert places.short(str(folder / "timm" / "data.py")) == os.path.join("timm", "data.py")

    def test_python_and_torch(self) -> None:
        assert places.short(json.__file__) == os.path.join("json", "__init__.py")
        assert places.short(torch.nn.__file__) == os.path.join("torch", "nn", "__init__.py")

    def test_the_users_is_none(self) -> None:
        assert not place_of(a_function).library


class TestCommands:
    """An installed command is nobody's code."""

    @pytest.mark.parametrize("folder", ["/usr/bin", "/usr/local/bin", os.path.dirname(sys.executable)])
    @pytest.mark.parametrize("name, users", [("torchrun", False), ("accelerate", False), ("train.py", True)])
    def test_is_not_the_users(self, folder: str, name: str, users: bool) -> None:
        assert is_users(os.path.join(folder, name)) is users

    def test_a_script_without_an_ending_is(self, tmp_path: Path) -> None:
        assert is_users(str(tmp_path / "train"))

    def test_the_caller_is_the_library_that_it_calls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(places, "is_users", lambda file: file != __file__ and is_users(file))
        library, command = "/venv/lib/python3.11/site-packages/ultra/engine.py", "/usr/bin/ultra"
        trains = _in_a_file(library)
        assert list(_in_a_file(command)(lambda: next(trains(caller)))) == ["ultra/engine.py:2"]


def test_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert places.short(str(tmp_path / "a" / "b.py")) == os.path.join("a", "b.py")
    assert places.short("/elsewhere/b.py") == "/elsewhere/b.py"


def test_caller_is_the_users_frame() -> None:
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    assert caller() == f"{places.short(__file__)}:{line}"


def _in_a_file(file: str) -> Callable[..., Iterator[str]]:
    """A loop around a function's results, as a progress bar has it, in a source file of this name."""
    made: dict[str, Any] = {}
    exec(compile("def loop(function):\n    yield function()\n", file, "exec"), made)
    loop: Callable[..., Iterator[str]] = made["loop"]
    return loop


def test_caller_is_the_users_line_where_a_library_wraps_the_loader() -> None:
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    (place,) = _in_a_file("/venv/lib/python3.11/site-packages/tqdm/std.py")(caller)
    assert place == f"{places.short(__file__)}:{line}"


def test_caller_of_a_librarys_own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "is_users", lambda file: False)
    library = "/venv/lib/python3.11/site-packages/lightning/loops.py"
    assert list(_in_a_file(library)(caller)) == [f"{places.short(library)}:2"]


def test_the_demo_counts_as_a_users_script_wherever_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = "/venv/lib/python3.11/site-packages/pipediag/demo/"
    monkeypatch.setattr(frames, "_DEMO", installed)
    assert is_users(installed + "train.py")
    assert not is_users("/venv/lib/python3.11/site-packages/torchvision/transforms/transforms.py")
