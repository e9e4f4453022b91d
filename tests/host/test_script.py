"""What the user asked to run: checked before an interpreter is started."""

from __future__ import annotations

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
