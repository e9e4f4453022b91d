"""Results go into files first, then to standard output; a failure of one does not affect the other."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipediag.host.passes import Request
from pipediag.session import Session

from ..conftest import Analyzed, Main
from ..made import climbing, make

SESSION = climbing(raw=30.0)


class Full(io.StringIO):
    """A stream that takes nothing."""

    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    return lambda name, number: monkeypatch.setattr(sys, name, Full(number))


def test_files_come_before_the_screen(
    main: Main, script: Path, tmp_path: Path, analyzed: Analyzed, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyzed(make(SESSION))

    def fail(*args: Any) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("pipediag.report.screen_for", fail)
    with pytest.raises(ZeroDivisionError):
        main("analyze", "-o", tmp_path / "a.json", script)
    assert (tmp_path / "a.json").exists()


def test_one_file_that_fails_does_not_take_the_next_with_it(
    main: Main, script: Path, tmp_path: Path, analyzed: Analyzed, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyzed(make(SESSION))
    gone = tmp_path / "gone"
    gone.mkdir()
    (gone / "a.json").touch()

    def measured(request: Request, progress: Any) -> Session:
        (gone / "a.json").unlink()
        gone.rmdir()
        return make(SESSION)

    monkeypatch.setattr("pipediag.host.passes.analyze_script", measured)
    code, out, err = main("analyze", "-o", gone / "a.json", "-o", tmp_path / "b.md", script)
    assert code == 1 and out.startswith("DATA COSTS")
    assert err == f"pipediag: {gone / 'a.json'} could not be written (No such file or directory)\n"
    assert (tmp_path / "b.md").exists()


def test_a_format_with_a_fault_does_neither(
    main: Main, script: Path, tmp_path: Path, analyzed: Analyzed, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyzed(make(SESSION))
    monkeypatch.setitem(__import__("pipediag.report").report.RENDERERS, ".md", lambda subject: {}["x"])
    code, _, err = main("analyze", "-o", tmp_path / "a.md", "-o", tmp_path / "b.txt", script)
    assert code == 1 and "a.md could not be written (KeyError: 'x')" in err
    assert (tmp_path / "b.txt").exists() and not (tmp_path / "a.md").exists()


@pytest.mark.parametrize(("number", "code"), [(errno.EPIPE, 0), (errno.ENOSPC, 1)])
def test_standard_output_that_takes_nothing(
    main: Main,
    script: Path,
    tmp_path: Path,
    analyzed: Analyzed,
    full: Callable[[str, int], None],
    number: int,
    code: int,
) -> None:
    """A reader who has left, as ``head`` does, is no failure."""
    requests = analyzed(make(SESSION))
    full("stdout", number)
    found, _, err = main("analyze", "-o", tmp_path / "a.json", script)
    assert found == code and ("No space left" in err) == (code == 1) and "Traceback" not in err
    assert (tmp_path / "a.json").exists() and len(requests) == 1


@pytest.mark.parametrize("command", [["analyze", "--fail-over", "10"], ["audit"], ["analyze", "--rungs", "no"]])
def test_standard_error_that_takes_nothing(
    main: Main, script: Path, analyzed: Analyzed, full: Callable[[str, int], None], command: list[str]
) -> None:
    analyzed(make(SESSION))
    full("stderr", errno.EPIPE)
    code, out, _ = main(*command, script)
    assert code == (2 if "no" in command else 3)
    assert bool(out) == (code == 3)


@pytest.mark.parametrize("options", [["-o", "-"], ["--json"], ["-o", "-", "--json", "-v"]])
def test_json_in_place_of_the_screen(main: Main, script: Path, analyzed: Analyzed, options: list[str]) -> None:
    analyzed(make(SESSION))
    code, out, _ = main("analyze", *options, script)
    assert code == 0 and json.loads(out)["verdict"]["bottleneck"] == "transform"


def test_json_beside_files(main: Main, tmp_path: Path) -> None:
    saved = Path(__file__).parents[1] / "report" / "golden" / "report.json"
    code, out, err = main("report", saved, "-o", tmp_path / "x.md")
    assert (code, out, err) == (0, "", f"pipediag: wrote {tmp_path / 'x.md'}\n")
    code, out, _ = main("report", saved, "-o", tmp_path / "y.md", "--json")
    assert code == 0 and json.loads(out) == json.loads(saved.read_text())
    assert (tmp_path / "x.md").read_text() == (tmp_path / "y.md").read_text()


@pytest.mark.parametrize("command", ["analyze", "audit"])
def test_verbosity(main: Main, script: Path, analyzed: Analyzed, command: str) -> None:
    analyzed(make(SESSION))
    quiet, screen, whole = (main(command, "--fail-over", "90", *option, script)[1] for option in (["-q"], [], ["-v"]))
    assert quiet.count("\n") == 1 < screen.count("\n") <= 24
    assert quiet.upper() == screen.partition("\n")[0].upper() + "\n"
    assert whole.startswith("DATA COSTS" if command == "analyze" else "THE AUDIT")


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["--budget", "30"], "", "--budget stands after the script"),
        (["--budget=30"], "", "--budget stands after the script"),
        (
            ["--output", "x", "--budget", "30"],
            "",
            "--output and --budget stand after the script, so",
        ),
        (["--epochs", "30", "-v"], "", ""),
        (["--apply"], "ValueError: unknown: --apply", "--apply stands after the script"),
    ],
)
def test_an_option_after_the_script(
    main: Main, script: Path, analyzed: Analyzed, args: list[str], error: str, hint: str
) -> None:
    """The script gets it. If the script does not know it, a line says where pipediag's options belong."""
    session = Session()
    session.script.exit_code, session.script.error = 1 if error else 2, error
    analyzed(session)
    code, _, err = main("analyze", script, *args)
    assert code == (1 if error else 2) and (hint in err if hint else err == "")
    session.script.exit_code, session.script.error = 0, ""
    assert "stands after" not in main("analyze", script, *args)[2]


@pytest.mark.parametrize(
    ("name", "elsewhere", "told"),
    [("data.csv", True, True), ("data.csv", False, False), ("absent.csv", True, False)],
)
def test_a_file_that_lies_here_and_not_where_the_script_runs(
    main: Main,
    script: Path,
    tmp_path: Path,
    analyzed: Analyzed,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    elsewhere: bool,
    told: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").touch()
    (tmp_path / "aside").mkdir()
    session = Session()
    session.script.exit_code = 1
    session.script.error = f"FileNotFoundError: [Errno 2] No such file or directory: '{name}'"
    analyzed(session)
    options = ["--workdir", "aside"] if elsewhere else []
    said = main("analyze", *options, script)[2]
    assert ("data.csv is not in aside, where --workdir runs the script" in said) == told


@pytest.mark.parametrize("command", ["audit", "sweep", "compare"])
def test_a_timeline_is_of_one_run(main: Main, script: Path, command: str) -> None:
    given = [script, script] if command == "compare" else ["--vary=--n=1", script] if command == "sweep" else [script]
    code, _, err = main(command, "-o", "x.json.gz", *given)
    assert code == 2 and ".json.gz holds the timeline of one run" in err
