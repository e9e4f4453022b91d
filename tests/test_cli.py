"""The command line in this process: usage errors, exit codes, and what reaches the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipediag import __version__
from pipediag.cli import _GROUPS, cli
from pipediag.session import Session

from .conftest import Analyzed, Main
from .made import climbing, make

GOLDEN = Path(__file__).parent / "report" / "golden"


def test_version(main: Main) -> None:
    code, out, err = main("--version")
    assert (code, err) == (0, "")
    assert __version__ in out


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["analyze", "--help"], ["report", "-h"], ["demo", "--help"]])
def test_help(main: Main, arguments: list[str]) -> None:
    code, out, _ = main(*arguments)
    assert code == 0
    assert "Usage:" in out


def test_help_shows_every_command_with_its_whole_sentence(main: Main) -> None:
    code, out, _ = main()
    assert (code, out) == (0, main("--help")[1])
    summaries = [(one.help or "").partition("\n")[0] for one in cli.commands.values()]
    assert {name for names in _GROUPS.values() for name in names} == set(cli.commands)
    assert all(summary.endswith(".") and summary in out for summary in summaries)
    assert "_PIPEDIAG_COMPLETE=bash_source pipediag" in out and "[tool.pipediag]" in out


def test_completion(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PIPEDIAG_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "pipediag analyze --app")
    monkeypatch.setenv("COMP_CWORD", "2")
    code, out, _ = main()
    assert (code, out.split()) == (0, ["plain,--apply", "plain,--apply-budget", "plain,--approximate"])


@pytest.mark.parametrize("command", [[], ["report"], ["demo"], ["analyze"]])
def test_unknown_option(main: Main, command: list[str]) -> None:
    code, out, err = main(*command, "--bogus")
    assert code == 2
    assert out == ""
    assert "--bogus" in err and err.startswith("pipediag: ") and err.count("\n") == 1


def test_unknown_option_before_a_script(main: Main, script: Path) -> None:
    code, _, err = main("analyze", "--bugdet", "3", script)
    assert code == 2
    assert "--bugdet" in err


@pytest.mark.parametrize(
    "words, told",
    [
        ("analyse", "no such command: analyse. Did you mean analyze?"),
        ("frobnicate", "no such command: frobnicate; known: analyze, audit, sweep, run, watch, demo, report, compare"),
        ("train.py --epochs 3", "train.py is no command. To analyse it: pipediag analyze train.py --epochs 3"),
        (
            "analyze --epochs 3 --budget 60 train.py -x",
            "no such option: --epochs. If it is one of train.py's, write: "
            "pipediag analyze --budget 60 train.py --epochs 3 -x",
        ),
        (
            "run --bugdet --plan=p train.py",
            "no such option: --bugdet. If it is one of train.py's, write: pipediag run --plan=p train.py --bugdet",
        ),
        (
            "analyze --bugdet 3 train.py",
            "no such option: --bugdet. Did you mean --budget? If it is one of train.py's, write: "
            "pipediag analyze train.py --bugdet 3",
        ),
        (
            "--epochs 3 --budget 60 train.py --amp",
            "--epochs stands before a command. To analyse a script: "
            "pipediag analyze --budget 60 train.py --epochs 3 --amp",
        ),
        ("--epochs 3", "No such option '--epochs'. See: pipediag --help"),
        ("analyze --amp", "no such option: --amp (put options before the script; see --help)"),
    ],
)
def test_a_mistake_is_told_what_to_type(main: Main, words: str, told: str) -> None:
    assert main(*words.split()) == (2, "", f"pipediag: {told}\n")


@pytest.mark.parametrize("command", [["analyze"], ["run"]])
def test_missing_argument(main: Main, command: list[str]) -> None:
    code, _, err = main(*command)
    assert code == 2
    assert "Missing argument" in err


@pytest.mark.parametrize("name", ["report.pdf", "report", "json"])
def test_bad_ending(main: Main, script: Path, tmp_path: Path, name: str) -> None:
    code, _, err = main("analyze", "-o", tmp_path / name, script)
    assert code == 2
    assert name in err
    assert ".json" in err
    assert not (tmp_path / name).exists()


def test_bad_ending_of_a_saved_report(main: Main, tmp_path: Path) -> None:
    code, _, err = main("report", GOLDEN / "report.json", "-o", tmp_path / "x.pdf")
    assert code == 2
    assert ".md" in err


def test_output_into_nowhere(main: Main, script: Path, tmp_path: Path) -> None:
    code, _, err = main("analyze", "-o", tmp_path / "no" / "x.json", script)
    assert code == 2
    assert "cannot be written" in err


@pytest.mark.parametrize("rungs", ["nonsense", "device,nonsense", "", ","])
def test_bad_rungs(main: Main, script: Path, rungs: str) -> None:
    code, _, err = main("analyze", "--rungs", rungs, script)
    assert code == 2
    assert "baseline" in err


@pytest.mark.parametrize(
    "option, value",
    [
        *(("--budget", value) for value in ("0", "soon", "nan", "inf")),
        *(("--apply-budget", value) for value in ("0", "nan")),
        *(("--fail-over", value) for value in ("101", "-1", "nan")),
        ("--loader", "0"),
    ],
)
def test_bad_number(main: Main, script: Path, option: str, value: str) -> None:
    code, _, err = main("analyze", option, value, script)
    assert code == 2
    assert option in err and err.count("\n") == 1


@pytest.mark.parametrize("price", ["nan", "inf", "-1", "0", "1e10"])
@pytest.mark.parametrize("command", ["analyze", "audit", "report"])
def test_bad_price(main: Main, script: Path, command: str, price: str) -> None:
    code, out, err = main(command, "--price", price, script)
    assert (code, out) == (2, "")
    assert err.startswith("pipediag: ") and "--price" in err and err.count("\n") == 1


def test_no_such_script(main: Main, tmp_path: Path) -> None:
    code, _, err = main("analyze", tmp_path / "nowhere.py")
    assert code == 2
    assert err.startswith("pipediag: no such script")


def test_report_of_a_missing_file(main: Main, tmp_path: Path) -> None:
    code, out, err = main("report", tmp_path / "missing.json")
    assert (code, out) == (2, "")
    assert err.startswith("pipediag: ")
    assert "missing.json" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"session": 1}', '{"session": {}}', "\x00"])
def test_report_of_another_file(main: Main, tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    code, out, err = main("report", file)
    assert (code, out) == (2, "")
    assert "x.json" in err


def test_report_of_a_binary_file(main: Main, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(b"\x80\x81\xff")
    code, _, err = main("report", file)
    assert code == 2
    assert "x.json" in err


def test_report(main: Main) -> None:
    code, out, err = main("report", GOLDEN / "report.json")
    assert (code, err) == (0, "")
    assert out == (GOLDEN / "report.screen").read_text()
    code, out, err = main("report", "-v", GOLDEN / "report.json")
    assert (code, err) == (0, "")
    assert out.replace("█", "#") == (GOLDEN / "report.txt").read_text()


def test_report_with_a_price(main: Main) -> None:
    """9.02 steps a second: 22.2 s for an epoch of 200, at 360 an hour."""
    code, out, err = main("report", "-v", "--price", "360", GOLDEN / "report.json")
    assert (code, err) == (0, "")
    assert "instead of 22.2 s; costs 1.09 instead of 2.22" in " ".join(out.split())


@pytest.mark.parametrize("ending", ["json", "md", "txt"])
def test_report_converts(main: Main, tmp_path: Path, ending: str) -> None:
    code, out, _ = main("report", GOLDEN / "report.json", "-o", tmp_path / f"x.{ending}")
    assert (code, out) == (0, "")
    assert (tmp_path / f"x.{ending}").read_text() == (GOLDEN / f"report.{ending}").read_text()


class TestAnalyze:
    def test_what_stands_after_the_script_is_the_scripts(self, main: Main, script: Path, analyzed: Analyzed) -> None:
        requests = analyzed(make(climbing()))
        theirs = ["--epochs", "3", "-o", "x", "--help", "--", "-m", "--budget"]
        code, _, _ = main("analyze", "--budget", "7", script, *theirs)
        assert code == 0
        (request,) = requests
        assert request.target.args == theirs
        assert request.target.name == str(script)
        assert not request.target.module
        assert request.budget == 7

    def test_module(self, main: Main, analyzed: Analyzed) -> None:
        requests = analyzed(make(climbing()))
        code, _, _ = main("analyze", "--loader", "2", "-m", "pkg.train", "-m", "x")
        assert code == 0
        (request,) = requests
        assert request.target.argv == ["-m", "pkg.train", "-m", "x"]
        assert request.loader == 2

    def test_rungs_are_put_in_order(self, main: Main, script: Path, analyzed: Analyzed) -> None:
        requests = analyzed(make(climbing()))
        main("analyze", "--rungs", "supply, baseline,device", script)
        assert requests[0].rungs == ["device", "baseline", "supply"]

    def test_reports_are_shown_and_written(self, main: Main, script: Path, tmp_path: Path, analyzed: Analyzed) -> None:
        analyzed(make(climbing(raw=30.0)))
        code, out, _ = main("analyze", "-o", tmp_path / "a.json", "-o", tmp_path / "b.md", script)
        assert code == 0
        assert out.startswith("DATA COSTS YOUR TRAINING")
        assert json.loads((tmp_path / "a.json").read_text())["verdict"]["bottleneck"] == "transform"
        assert (tmp_path / "b.md").read_text().startswith("# DATA COSTS YOUR TRAINING")

    @pytest.mark.parametrize("command", ["analyze", "audit"])
    def test_price(self, main: Main, script: Path, tmp_path: Path, analyzed: Analyzed, command: str) -> None:
        analyzed(make(climbing(raw=30.0, warm=30.0)))
        code, _, _ = main(command, "--fail-over", "90", "--price", "3", "-o", tmp_path / "a.json", script)
        assert code == 0
        assert json.loads((tmp_path / "a.json").read_text())["price"] == 3.0

    @pytest.mark.parametrize("percent, code", [(10, 3), (60, 0)])
    def test_gate(self, main: Main, script: Path, analyzed: Analyzed, percent: int, code: int) -> None:
        analyzed(make(climbing(raw=30.0)))
        found, _, err = main("analyze", "--fail-over", percent, script)
        assert found == code
        assert ("more than 10 %" in err) == (code == 3)

    def test_gate_wants_certainty(self, main: Main, script: Path, analyzed: Analyzed) -> None:
        """Eleven percent of a step, or a few more or less."""
        analyzed(make(climbing(raw=5.0), rounds=1))
        assert main("analyze", "--fail-over", "10", script)[0] == 0

    def test_exit_code_of_the_script_passes_through(self, main: Main, script: Path, analyzed: Analyzed) -> None:
        session = make(climbing(raw=30.0))
        session.script.exit_code = 7
        analyzed(session)
        code, out, _ = main("analyze", "--fail-over", "10", script)
        assert code == 7
        assert "transform" in out

    def test_interrupted(self, main: Main, script: Path, analyzed: Analyzed) -> None:
        session = make(climbing(raw=30.0))
        session.ended = "interrupted"
        analyzed(session)
        code, out, _ = main("analyze", script)
        assert code == 130
        assert "transform" in out

    def test_interrupted_before_anything_was_measured(self, main: Main, script: Path, analyzed: Analyzed) -> None:
        analyzed(Session(ended="interrupted"))
        code, out, _ = main("analyze", script)
        assert (code, out) == (130, "")
