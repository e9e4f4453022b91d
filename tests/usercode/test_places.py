"""Which line of the user's code a transform comes from."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torchvision import transforms as v1
from torchvision.transforms import v2

import pipediag.demo.train
import pipediag.ladder.worker_side
from pipediag import frames
from pipediag.frames import is_users
from pipediag.session import Place
from pipediag.usercode import places
from pipediag.usercode.places import caller, definition, label, place_of, places_of

from ..things import Double

Write = Callable[[str], None]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the one source file that the user has."""
    file = tmp_path / "train.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "_users_files", lambda: [str(file)])

    def write(source: str) -> None:
        file.write_text(textwrap.dedent(source).lstrip())

    return write


def lines(*links: Any) -> list[str]:
    """The script's line for each link; empty for one that is placed at its library's definition."""
    found = [place.where for place in places_of(links)]
    return [where.partition(":")[2] if where.startswith("train.py:") else "" for where in found]


CROP, FLIP, TENSOR, PAD = v1.CenterCrop(4), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Pad(2)


class TestConstructions:
    def test_the_only_one(self, script: Write) -> None:
        script("""
            transform = Compose([
                CenterCrop(4),
                transforms.RandomHorizontalFlip(p=0.5), v2.Pad(
                    2,
                ),
            ])
        """)
        assert lines(CROP, FLIP, PAD) == ["2", "3", "3"]

    def test_anywhere_in_the_script(self, script: Write) -> None:
        script("""
            class Augment:
                def __init__(self, size):
                    self.crop = CenterCrop(size)
                    self.flip = flip if size else RandomHorizontalFlip()
        """)
        assert lines(CROP, FLIP) == ["3", "4"]

    def test_the_company_decides(self, script: Write) -> None:
        """The training's chain, not the validation's."""
        script("""
            train = Compose([RandomHorizontalFlip(), CenterCrop(4), ToTensor()])
            valid = Compose([Pad(2), CenterCrop(4), ToTensor()])
        """)
        assert lines(FLIP, CROP, TENSOR) == ["1", "1", "1"]
        assert lines(PAD, CROP, TENSOR) == ["2", "2", "2"]

    def test_company_as_arguments(self, script: Write) -> None:
        script("""
            train = Sequential(RandomHorizontalFlip(), CenterCrop(4))
            valid = (CenterCrop(4), Pad(2))
        """)
        assert lines(FLIP, CROP) == ["1", "1"]
        assert lines(CROP, PAD) == ["2", "2"]

    def test_ambiguous(self, script: Write) -> None:
        """No line is better than the wrong one: the library's own is named."""
        script("""
            train = Compose([CenterCrop(4), ToTensor()])
            valid = Compose([CenterCrop(8), ToTensor()])
        """)
        assert lines(CROP, TENSOR) == ["", ""]
        assert places_of([CROP]) == [Place("CenterCrop", definition(v1.CenterCrop))]

    def test_not_constructed_in_the_script(self, script: Write) -> None:
        script("chain = build(config)")
        assert places_of([CROP, Double()]) == [
            Place("CenterCrop", definition(v1.CenterCrop)),
            Place("Double", definition(Double)),
        ]

    def test_the_users_own_are_placed_at_their_definition(self, script: Write) -> None:
        script("chain = Compose([Double(), CenterCrop(4)])")
        double, crop = places_of([Double(), CROP])
        assert double == Place("Double", definition(Double))
        assert crop == Place("CenterCrop", "train.py:1")

    def test_torchs_own_without_a_construction_have_no_place(self, script: Write) -> None:
        script("")
        assert places_of([torch.nn.ReLU()]) == [Place("ReLU", "")]

    def test_torchs_own_with_one(self, script: Write) -> None:
        script("chain = torch.nn.Sequential(torch.nn.ReLU())")
        assert places_of([torch.nn.ReLU()]) == [Place("ReLU", "train.py:1")]

    @pytest.mark.parametrize("source", ["def broken(:", "\0", "x = 'no calls'"])
    def test_a_script_that_tells_nothing(self, script: Write, source: str) -> None:
        script(source)
        assert lines(CROP) == [""]

    def test_a_script_that_is_gone(self, script: Write) -> None:
        assert lines(CROP) == [""]

    def test_a_script_too_large_to_be_searched(self, script: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(places, "_MOST_BYTES", 10)
        script("chain = Compose([CenterCrop(4)])")
        assert lines(CROP) == [""]

    @pytest.mark.parametrize("function", [np.asarray, functional.normalize])
    def test_a_librarys_function_is_not_constructed(self, script: Write, function: Any) -> None:
        """Calling a function of that name elsewhere has nothing to do with the chain."""
        script(f"""
            chain = Compose([{function.__name__}])
            print(table.{function.__name__}(2))
        """)
        assert lines(function) == [""]

    def test_the_files_searched_are_the_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(places, "_MOST_FILES", len(sys.modules))  # a test process loads many of ours
        found = places._users_files()
        assert os.path.abspath(__file__) in found
        assert not [file for file in found if not is_users(file)]
        assert pipediag.ladder.worker_side.__file__ not in found
        assert all(map(os.path.isfile, found))

    def test_the_script_itself_is_always_searched(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        script = tmp_path / "zzz.py"
        script.touch()
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
        monkeypatch.setattr(places, "_MOST_FILES", 1)
        assert places._users_files() == [str(script)]


class TestIsUsers:
    def test_this_file(self) -> None:
        assert is_users(__file__)

    @pytest.mark.parametrize("module", [json, torch, torch.nn, np, v2, pytest, pipediag.ladder.worker_side])
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


def test_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert places.short(str(tmp_path / "a" / "b.py")) == os.path.join("a", "b.py")
    assert places.short(sys.executable) == sys.executable


def test_a_cell_has_the_name_that_its_notebook_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])  # what IPython imports may add to it
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    try:
        cell = "from torchvision import transforms\n\nflip = transforms.RandomVerticalFlip()\n"
        file = shell.compile.cache(cell, 3, raw_code=cell)
        monkeypatch.setattr(shell.compile, "format_code_name", lambda name: ("Cell", "In[3]") if name == file else None)
        assert places.short(file) == "In[3]"
        monkeypatch.setattr(places, "is_users", lambda file: False)  # of the files: other tests construct it too
        assert places_of([v1.RandomVerticalFlip()]) == [Place("RandomVerticalFlip", "In[3]:3")]
    finally:
        shell.clear_instance()


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
