"""What the user asks to run is checked before an interpreter is started."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from pipediag.errors import EXIT_USAGE, UsageError
from pipediag.host.script import Target


def test_script_that_exists(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    Target(str(script)).check()


def test_no_such_script(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such script: .*train\.py") as error:
        Target(str(tmp_path / "train.py")).check()
    assert error.value.exit_code == EXIT_USAGE


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"directory.*-m"):
        Target(str(tmp_path)).check()


def test_a_module_is_looked_for_by_the_interpreter_that_runs_it() -> None:
    Target("no.such.module", module=True).check()


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

    def test_no_python_script(self, commands: Path) -> None:
        (commands / "launch").write_text("#!/bin/sh\n")
        with pytest.raises(UsageError, match="launch is not a Python script"):
            Target.named("launch", [])

    def test_another_python(self, commands: Path) -> None:
        (commands / "launch").write_text("#!/nowhere/python\n")
        with pytest.raises(UsageError, match=r"launch is run by another Python \(/nowhere/python\)"):
            Target.named("launch", [])

    def test_nothing_of_the_name(self, commands: Path) -> None:
        with pytest.raises(UsageError, match="no such script: nosuch"):
            Target.named("nosuch", []).check()

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
