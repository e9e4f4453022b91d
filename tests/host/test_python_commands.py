"""Command lines of Python processes: what they run, and by which interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pipediag.host.script import PythonCommand, interpreter_of, is_named_python, is_this_python


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
