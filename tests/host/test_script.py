"""Which script a command runs, how pipediag finds its own modules beside it, and what is refused."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pipediag.errors import EXIT_USAGE, UsageError
from pipediag.host.script import (
    PythonCommand,
    Target,
    forget_hidden,
    interpreter_of,
    is_named_python,
    is_this_python,
    script_aside,
)


@pytest.mark.parametrize(("name", "refusal"), [("none.py", r"no such script: .*none\.py"), ("", r"directory.*-m")])
def test_no_such_script(tmp_path: Path, name: str, refusal: str) -> None:
    (tmp_path / "train.py").touch()
    Target(str(tmp_path / "train.py")).check()
    with pytest.raises(UsageError, match=refusal) as error:
        Target(str(tmp_path / name)).check()
    assert error.value.exit_code == EXIT_USAGE


def test_module_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package is imported; one that may have parts elsewhere is left to the interpreter that runs the script."""
    monkeypatch.chdir(tmp_path)
    for name, code in {"plain": "raise ImportError", "moving": "__path__ = []", "parts": None}.items():
        (tmp_path / name).mkdir()
        if code is not None:
            (tmp_path / name / "__init__.py").write_text(code)
    (tmp_path / "plain/train.py").touch()
    for there in ("plain", "plain.train", "moving.train", "parts.train", "timeit", "xml.sax"):
        Target(there, module=True).check()
    for missing in ("no.such.module", "plain.trian", "plain.train.more", "timeit.more"):
        with pytest.raises(UsageError, match=f"no module named {missing} in this folder or on Python's path"):
            Target(missing, module=True).check()


def test_argv() -> None:
    assert Target("train.py", ["--lr", "1"]).argv == ["train.py", "--lr", "1"]
    assert Target("pkg.train", ["--lr", "1"], module=True).argv == ["-m", "pkg.train", "--lr", "1"]


class TestNamed:
    """What can stand in place of a script."""

    def test_python_itself(self) -> None:
        assert Target.named("python", ["-m", "pkg", "a"]) == Target("pkg", ["a"], module=True)
        assert Target.named(sys.executable, ["-u", "train.py", "-x"]) == Target("train.py", ["-x"], flags=("-u",))

    @pytest.mark.parametrize("args", [[], ["-c", "pass"], ["-"]])
    def test_python_without_a_script(self, args: list[str]) -> None:
        with pytest.raises(UsageError, match="python is given no script"):
            Target.named("python", args)

    def test_a_console_script(self, commands: Path) -> None:
        assert Target.named("launch", ["train.py"]) == Target(str(commands / "launch"), ["train.py"])

    def test_an_environment_that_is_not_activated(self, commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(sys, "executable", str(commands / "python"))
        (commands / "launch").write_text(f"#!{commands / 'python'}\n")
        (commands / "python").touch(mode=0o755)
        assert Target.named("launch", ["train.py"]) == Target(str(commands / "launch"), ["train.py"])

    def test_a_file_comes_first(self, commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "launch").touch()
        assert Target.named("launch", []) == Target("launch")

    @pytest.mark.parametrize(
        ("name", "head", "refusal"),
        [
            ("launch", "#!/bin/sh", "launch is not a Python script"),
            ("launch", "#!/nowhere/python", r"launch is run by another Python \(/nowhere/python\)"),
            ("nosuch", "", "no such script: nosuch"),
        ],
    )
    def test_no_python_script(self, commands: Path, name: str, head: str, refusal: str) -> None:
        (commands / "launch").write_text(f"{head}\n")
        with pytest.raises(UsageError, match=refusal):
            Target.named(name, []).check()

    @pytest.fixture
    def commands(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder in the path with one console script."""
        folder = tmp_path / "commands"
        folder.mkdir()
        (folder / "launch").write_text(f"#!{sys.executable}\n")
        (folder / "launch").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
        return folder


@pytest.mark.parametrize("head", [b"", b"#!/usr/bin/env python3\n"])
def test_a_zip_archive_is_named_as_one(tmp_path: Path, head: bytes) -> None:
    with open(tmp_path / "train.pyz", "wb") as file:
        file.write(head)
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("__main__.py", "")
    with pytest.raises(UsageError, match="is a zip archive"):
        Target(str(tmp_path / "train.pyz")).check()
    os.mkfifo(tmp_path / "pipe")
    Target(str(tmp_path / "pipe")).check()


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


def test_a_script_of_the_standard_library_hides_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such as cProfile, which runs the user's."""
    main = ModuleType("__main__")
    main.__file__ = importlib.import_module("cProfile").__file__
    monkeypatch.setitem(sys.modules, "__main__", main)
    (tmp_path / "json.py").touch()
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    with script_aside():
        assert sys.path == [one for one in path if one != str(tmp_path)]
        importlib.import_module("sched")


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


@pytest.mark.parametrize(
    ("words", "flags", "target"),
    [
        ("train.py --lr 1", "", "train.py --lr 1"),
        ("-u train.py -c x", "-u", "train.py -c x"),
        ("-m pkg.train -m", "", "-m pkg.train -m"),
        ("-X dev -W error -Wignore -uB train.py", "-X dev -W error -Wignore -uB", "train.py"),
        ("-bXdev train.py", "-bXdev", "train.py"),
        ("-uX dev train.py", "-uX dev", "train.py"),
        ("-Wmodule train.py", "-Wmodule", "train.py"),
        ("--check-hash-based-pycs never train.py", "--check-hash-based-pycs never", "train.py"),
    ],
)
def test_scripts_and_modules(words: str, flags: str, target: str) -> None:
    command = PythonCommand.of(["python", *words.split()])
    assert command == PythonCommand("python", tuple(flags.split()), tuple(target.split()))


@pytest.mark.parametrize("words", ["", "-u", "-c pass", "-uc pass", "-", "-u -", "-m", "-mpkg.train"])
def test_what_is_no_script(words: str) -> None:
    assert PythonCommand.of(["python", *words.split()]) is None


@pytest.mark.parametrize(
    ("first", "interpreter"),
    [
        ("#!/usr/bin/python3", "/usr/bin/python3"),
        ("#!/usr/bin/env python3.11", "python3.11"),
        ("#!/usr/bin/env -S A=1 python", "python"),
        ('#!/bin/sh\n\'\'\'exec\' "/a/long/path/bin/python3" "$0" "$@"', "/a/long/path/bin/python3"),
        ("#!/bin/sh\necho", None),
        ("#!/usr/bin/perl", None),
        ("#!", None),
        ("\x7fELF", None),
    ],
)
def test_the_interpreter_of_a_console_script(tmp_path: Path, first: str, interpreter: str | None) -> None:
    script = tmp_path / "command"
    script.write_text(f"{first}\nimport sys\n")
    assert interpreter_of(str(script)) == interpreter
    assert interpreter_of(str(tmp_path / "none")) is None


def test_this_python_by_any_of_its_names(tmp_path: Path) -> None:
    assert is_this_python(sys.executable)
    assert is_this_python("python", path=os.path.dirname(sys.executable))
    assert not is_this_python("python", path=str(tmp_path))


def test_the_same_file_in_another_environment_has_other_packages(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    python = tmp_path / "bin" / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    assert not is_this_python(str(python))


@pytest.mark.parametrize(("word", "named"), [("/x/python3.11", True), ("python", True), ("pythonista", False)])
def test_names(word: str, named: bool) -> None:
    assert is_named_python(word) is named
