"""The script's own ``html.py`` is the script's, and not pipediag's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pipediag.host.script import forget_hidden, script_aside

#: A module of the standard library that nothing else here uses.
NAME = "this"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a running script with a module of that name beside it."""
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "train.py")
    (tmp_path / f"{NAME}.py").write_text("mine = True\n")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop(NAME, None)
    yield tmp_path
    sys.modules.pop(NAME, None)


def has_been_made_by_the_script(name: str) -> bool:
    importlib.invalidate_caches()
    return hasattr(importlib.import_module(name), "mine")


@pytest.mark.parametrize("before", [True, False])
def test_each_gets_its_own(folder: Path, before: bool, capsys: pytest.CaptureFixture[str]) -> None:
    if before:
        assert has_been_made_by_the_script(NAME)
        theirs = sys.modules[NAME]
    path = list(sys.path)
    with script_aside():
        assert not has_been_made_by_the_script(NAME)
    assert sys.path == path and has_been_made_by_the_script(NAME)
    if before:
        assert sys.modules[NAME] is theirs


def test_what_pipediag_has_imported_is_not_the_scripts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with script_aside():
        module = importlib.import_module(NAME)
    sys.modules[NAME] = module
    forget_hidden(str(folder))
    assert NAME not in sys.modules and has_been_made_by_the_script(NAME)


def test_a_folder_that_hides_nothing_changes_nothing(tmp_path: Path) -> None:
    before = dict(sys.modules)
    (tmp_path / "os.py").touch()
    forget_hidden(str(tmp_path))
    forget_hidden(str(tmp_path / "none"))
    assert sys.modules == before
