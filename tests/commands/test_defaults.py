"""Defaults of options from a ``pyproject.toml``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipediag.host.passes import Request

from ..conftest import Analyzed, Main
from ..made import climbing, make

Measured = Callable[..., Request]


@pytest.fixture
def measured(main: Main, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, analyzed: Analyzed) -> Measured:
    """Run a command on a script beside a ``pyproject.toml``; return the request."""
    monkeypatch.chdir(tmp_path)
    requests = analyzed(make(climbing()))

    def run(text: str, *command: str) -> Request:
        (tmp_path / "pyproject.toml").write_text(text)
        code, _, err = main(*command, script)
        assert code == 0, err
        return requests[-1]

    return run


def test_common_and_own(measured: Measured) -> None:
    text = "[tool.pipediag]\nbudget = 60\n[tool.pipediag.analyze]\napply = true\napply_budget = 20\n"
    assert (request := measured(text, "analyze")).budget == 60 and request.apply == 20
    assert (request := measured(text, "audit")).budget == 60 and request.apply == 0


def test_a_commands_own_table_wins_and_the_command_line_over_both(measured: Measured) -> None:
    text = "[tool.pipediag.analyze]\nbudget = 30.5\n[tool.pipediag]\nbudget = 60\n"
    assert measured(text, "analyze").budget == 30.5
    assert measured(text, "analyze", "--budget", "7").budget == 7


def test_from_a_folder_above(measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "pyproject.toml").write_text("[tool.other]\nbudget = 1\n")
    monkeypatch.chdir(tmp_path / "inner")
    assert measured("[tool.pipediag]\nbudget = 60\n", "analyze").budget == 60


def test_files_and_rungs(measured: Measured, tmp_path: Path) -> None:
    text = f"[tool.pipediag.analyze]\noutput = ['{tmp_path / 'x.json'}']\nrungs = 'device,baseline'\n"
    assert measured(text, "analyze").rungs == ["device", "baseline"]
    assert (tmp_path / "x.json").exists()


@pytest.mark.parametrize("text", ["", "[tool.other]\nx = 1", "# pipediag\n[project]\nname = 'x'", "tool = 'pipediag'"])
def test_without_a_table(measured: Measured, text: str) -> None:
    assert measured(text, "analyze").budget == 120


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tool.pipediag]\nbugdet = 60", "no command has the option bugdet"),
        ("[tool.pipediag.analyze]\nvary = 'x'", "[tool.pipediag.analyze]: no option vary"),
        ("[tool.pipediag.analyse]\nbudget = 60", "[tool.pipediag.analyse]: no such command"),
        ("[tool.pipediag]\nbudget = 'long'", "budget = 'long': a number is needed"),
        ("[tool.pipediag]\nbudget = true", "budget = True: a number is needed"),
        ("[tool.pipediag]\nbudget = nan", "not a finite number"),
        ("[tool.pipediag]\nbudget = 0", "not in the range"),
        ("[tool.pipediag]\napply = 1", "apply = 1: true or false is needed"),
        ("[tool.pipediag]\nworkdir = 3", "workdir = 3: a text is needed"),
        ("[tool.pipediag]\noutput = [1]", "a list of texts is needed"),
        ('[tool.pipediag]\noutput = "a\\u0000.html"', "a list of texts is needed"),
        ('[tool.pipediag]\nplan = "a\\u0000"', "a text is needed"),
        ("[tool.pipediag]\nloader = 1.5", "loader = 1.5: a whole number is needed"),
        (f"[tool.pipediag]\nbudget = 1{400 * '0'}", "not a finite number"),
        (f"[tool.pipediag]\nbudget = {5000 * '9'}", "not TOML (Exceeds the limit"),
        (f"[tool.pipediag]\nbudget = 0x{5000 * '9'}", "Exceeds the limit"),
        (f"[tool.pipediag]\nbudget = {9000 * '['}", "not TOML (maximum recursion depth"),
        ("[[tool.pipediag]]\nbudget = 60", "tool.pipediag is no table; begin one with [tool.pipediag]"),
        ("[tool.pipediag]\nbudget = ", "not TOML"),
        ("[tool.pipediag]\noutput = ['/etc/x.json']", "outside the project"),
        ("[tool.pipediag]\noutput = ['ok.json', '../x.json']", "outside the project"),
        ("[tool.pipediag.analyze]\nplan = '/tmp/p.json'", "outside the project"),
    ],
)
def test_what_does_not_fit(
    main: Main, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(text)
    code, out, err = main("analyze", script)
    assert (code, out) == (2, "")
    assert told in err and "pyproject.toml" in err and err.count("\n") == 1
    assert main("--help")[0] == 0


def test_a_link_out_of_the_project_is_outside(
    main: Main, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "clone"
    project.mkdir()
    (tmp_path / "settings.json").write_text("mine")
    (project / "out.json").symlink_to(tmp_path / "settings.json")
    (project / "pyproject.toml").write_text("[tool.pipediag]\noutput = ['out.json']\n")
    monkeypatch.chdir(project)
    code, _, err = main("analyze", script)
    assert code == 2 and "outside the project" in err and (tmp_path / "settings.json").read_text() == "mine"


def test_a_line_names_the_table(main: Main, script: Path, measured: Measured, tmp_path: Path) -> None:
    measured("[tool.pipediag]\nbudget = 60\noutput = 'x.json'\n[tool.pipediag.run]\napproximate = true\n", "analyze")
    _, _, err = main("analyze", script)
    assert f"pipediag: defaults from {tmp_path / 'pyproject.toml'}: budget, output\n" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_table_of_another_user_is_not_read(
    main: Main, script: Path, tmp_path: Path, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[tool.pipediag]\nbudget = 60\n"
    measured(text, "analyze")
    os.chown(tmp_path / "pyproject.toml", 12345, 12345)
    assert measured(text, "analyze").budget == 120
    assert "it belongs to another user" in main("analyze", script)[2]


def test_a_pipe_is_no_table(measured: Measured, main: Main, tmp_path: Path, script: Path) -> None:
    os.mkfifo(tmp_path / "pyproject.toml")
    assert main("analyze", script)[0] == 0


def test_a_removed_working_directory_is_said(main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, err = main("report", "x.json")
    assert code == 2 and "the working directory was removed" in err and err.count("\n") == 1
