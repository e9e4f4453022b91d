"""Which line of the user's code constructs a library's transform."""

from __future__ import annotations

import ast
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torchvision import transforms as v1

import pipediag.ladder.workers.worker_side
from pipediag.frames import is_users
from pipediag.session import Link, Part, Place
from pipediag.usercode import constructions as module
from pipediag.usercode import places
from pipediag.usercode.constructions import located, places_of
from pipediag.usercode.places import placed

from ..things import Double

Write = Callable[[str], None]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the one source file that the user has."""
    file = tmp_path / "train.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_users_files", lambda: [str(file)])

    def write(source: str) -> None:
        file.write_text(textwrap.dedent(source).lstrip())

    return write


def lines(*links: Any) -> list[str]:
    """The script's line for each link; empty for one that is placed at its library's definition."""
    found = [place.where for place in places_of(links)]
    return [where.partition(":")[2] if where.startswith("train.py:") else "" for where in found]


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the sources that were parsed."""
    found: list[int] = []
    native = ast.parse

    def parse(source: bytes, *more: Any) -> ast.AST:
        found.append(len(source))
        return native(source, *more)

    monkeypatch.setattr(ast, "parse", parse)
    return found


MADE = type("MADE", (Double,), {})
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
        assert places_of([CROP]) == [Place("CenterCrop", placed("", v1.CenterCrop).where, library=True)]

    def test_not_constructed_in_the_script(self, script: Write) -> None:
        script("chain = build(config)")
        assert places_of([CROP, Double()]) == [
            Place("CenterCrop", placed("", v1.CenterCrop).where, library=True),
            Place("Double", placed("", Double).where),
        ]

    def test_the_users_own_are_placed_at_their_definition(self, script: Write) -> None:
        script("chain = Compose([Double(), CenterCrop(4)])")
        double, crop = places_of([Double(), CROP])
        assert double == Place("Double", placed("", Double).where)
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
        monkeypatch.setattr(module, "_MOST_BYTES", 10)
        script("chain = Compose([CenterCrop(4)])")
        assert lines(CROP) == [""]

    def test_a_class_without_a_statement_is_placed_where_it_is_called(self, script: Write) -> None:
        script("chain = Compose([MADE()])")
        assert places_of([MADE()]) == [Place("MADE", "train.py:1")]

    def test_a_file_is_parsed_once(self, script: Write, parses: list[int]) -> None:
        script("chain = Compose([CenterCrop(4), Pad(2)])")
        for _ in range(3):
            assert lines(CROP, PAD) == ["1", "1"]
        assert len(parses) == 1

    def test_a_file_that_has_changed_is_parsed_again(self, script: Write, parses: list[int]) -> None:
        script("chain = Compose([CenterCrop(4)])")
        assert lines(CROP) == ["1"]
        script("size = 4\nchain = Compose([CenterCrop(size)])")
        assert lines(CROP) == ["2"]
        assert len(parses) == 2

    def test_a_file_that_does_not_name_them_is_not_parsed(self, script: Write, parses: list[int]) -> None:
        script("chain = Compose([Pad(2)])\nclass CenterCrop(Pad): pass\ndef RandomHorizontalFlip(): pass")
        assert lines(CROP, FLIP) == ["", ""]
        assert parses == []

    def test_nor_one_that_only_names_the_users_own(self, script: Write, parses: list[int]) -> None:
        script("chain = Compose([Double()])")
        assert lines(Double(), CROP) == ["", ""]
        assert parses == []

    def test_nothing_is_searched_for_the_users_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_users_files", lambda: pytest.fail("files were searched"))
        assert places_of([Double()]) == [Place("Double", placed("", Double).where)]

    @pytest.mark.parametrize("function", [np.asarray, functional.normalize])
    def test_a_librarys_function_is_not_constructed(self, script: Write, function: Any) -> None:
        """Calling a function of that name elsewhere has nothing to do with the chain."""
        script(f"""
            chain = Compose([{function.__name__}])
            print(table.{function.__name__}(2))
        """)
        assert lines(function) == [""]

    def test_the_files_searched_are_the_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_MOST_FILES", len(sys.modules))  # a test process loads many of ours
        found = module._users_files()
        assert os.path.abspath(__file__) in found
        assert not [file for file in found if not is_users(file)]
        assert pipediag.ladder.workers.worker_side.__file__ not in found
        assert all(map(os.path.isfile, found))

    def test_the_script_itself_is_always_searched(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        script = tmp_path / "zzz.py"
        script.touch()
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
        monkeypatch.setattr(module, "_MOST_FILES", 1)
        assert module._users_files() == [str(script)]


def test_a_cell_has_the_name_that_its_notebook_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])  # what IPython imports may add to it
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    try:
        cell = "from torchvision import transforms\n\nflip = transforms.RandomVerticalFlip()\n"
        file = shell.compile.cache(cell, 3, raw_code=cell)
        monkeypatch.setattr(shell.compile, "format_code_name", lambda name: ("Cell", "In[3]") if name == file else None)
        assert places.short(file) == "In[3]"
        monkeypatch.setattr(module, "is_users", lambda file: False)  # of the files: other tests construct it too
        assert places_of([v1.RandomVerticalFlip()]) == [Place("RandomVerticalFlip", "In[3]:3")]
    finally:
        shell.clear_instance()


def test_parts_of_a_wrapper_have_lines_of_their_own(script: Write) -> None:
    script("""
        chain = [
            transforms.RandomApply(
                [transforms.ColorJitter(0.4)],
            ),
            transforms.ColorJitter,
        ]
    """)
    origin = "torchvision.transforms.transforms"
    parts = [Part("ColorJitter", "lib.py:9", origin, True), Part("Own", "aug.py:3", "aug")]
    (link,) = located([Link("RandomApply", "lib.py:5", origin=origin, library=True, parts=parts)])
    assert (link.where, link.library) == ("train.py:2", False)
    assert [(part.where, part.library) for part in link.parts] == [("train.py:3", False), ("aug.py:3", False)]
    assert parts[0].library, "what the worker found stays as it was"
