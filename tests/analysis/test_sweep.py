"""Sweeps: the command lines of the runs, their table, and what an interruption leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.summary import summarise
from pipediag.analysis.sweep import Run, Sweep
from pipediag.commands.sweep import Setting, Varied, grid, parse, with_setting
from pipediag.errors import NothingMeasured, UsageError
from pipediag.host.passes import Request
from pipediag.report import RENDERERS
from pipediag.report.several_runs import notes, runs_table, sentence
from pipediag.session import HANDED_OVER, REMEDIED, Remedy, Session

from ..conftest import Main
from ..made import climbing, make, then_tried

BATCH = (("--batch-size", "16"),)


class TestParse:
    @pytest.mark.parametrize(
        ("text", "varied"),
        [
            ("--batch-size=16,32", ("--batch-size", ("16", "32"))),
            ("-b=16", ("-b", ("16",))),
            ("data.workers=0, 2", ("data.workers", ("0", "2"))),
            ("--lr=1e-3,-1", ("--lr", ("1e-3", "-1"))),
            ("--set=a=1,a=2", ("--set", ("a=1", "a=2"))),
        ],
    )
    def test_names_and_values(self, text: str, varied: Varied) -> None:
        assert parse(text) == varied

    @pytest.mark.parametrize(
        "text", ["", "--batch-size", "--batch-size=", "--batch-size=16,,32", "=16", "--=16", "-b=1,1"]
    )
    def test_not(self, text: str) -> None:
        with pytest.raises(UsageError, match="--vary"):
            parse(text)


class TestGrid:
    def test_product(self) -> None:
        assert grid([("--a", ("1", "2")), ("-b", ("x", "y"))]) == [
            (("--a", "1"), ("-b", "x")),
            (("--a", "1"), ("-b", "y")),
            (("--a", "2"), ("-b", "x")),
            (("--a", "2"), ("-b", "y")),
        ]

    def test_twice(self) -> None:
        with pytest.raises(UsageError, match="separated by commas"):
            grid([("--a", ("1",)), ("--a", ("2",))])


class TestArguments:
    @pytest.mark.parametrize(
        ("args", "setting", "changed"),
        [
            ([], BATCH, ["--batch-size=16"]),
            (["--epochs", "3"], BATCH, ["--epochs", "3", "--batch-size=16"]),
            (["--batch-size", "8", "x"], BATCH, ["--batch-size", "16", "x"]),
            (["x", "--batch-size=8"], BATCH, ["x", "--batch-size=16"]),
            (["--batch-size=8", "--batch-size", "9"], BATCH, ["--batch-size=8", "--batch-size", "16"]),
            (["--batch-sizes=8"], BATCH, ["--batch-sizes=8", "--batch-size=16"]),
            (["-b", "8"], (("-b", "16"),), ["-b", "16"]),
            (["x"], (("-b", "16"),), ["x", "-b", "16"]),
            (["model=vit", "batch=8"], (("batch", "16"),), ["model=vit", "batch=16"]),
            (["train", "batch"], (("batch", "16"),), ["train", "batch", "batch=16"]),
            (["--a=1"], (("--a", "2"), ("--b", "3")), ["--a=2", "--b=3"]),
        ],
    )
    def test_replaced_or_added(self, args: list[str], setting: Setting, changed: list[str]) -> None:
        before = list(args)
        assert with_setting(args, setting) == changed
        assert args == before

    def test_nothing_to_replace(self) -> None:
        with pytest.raises(UsageError, match="no value among"):
            with_setting(["--batch-size"], BATCH)


def run(value: str = "16", baseline: float = 30.0, size: int = 16, **more: Any) -> Run:
    session = make(climbing(raw=baseline), noise=0.0)
    session.loader.batch_size = size
    return Run((("--batch-size", value),), ["train.py", f"--batch-size={value}"], diagnose_session(session), **more)


def remedied(value: str = "16", faster: float = 2.0, **remedy: Any) -> Run:
    rounds = 0 if remedy else 4
    session = make(climbing(raw=30.0), noise=0.0)
    then_tried(session, REMEDIED, faster, rounds, 0.8, Remedy("cuda", **remedy))
    return Run((("--batch-size", value),), ["train.py"], diagnose_session(session))


FAILED = Run(
    (("--batch-size", "512"),), ["train.py"], None, 1, "the script ended with exit code 1: OutOfMemoryError: no"
)


class TestTable:
    def test_rows(self) -> None:
        sweep = Sweep("train.py", 2, [run(), run("32", 0.2, 32)])
        rates = ["possible steps/s", "possible samples/s", "now steps/s", "now samples/s"]
        assert runs_table(sweep).headers == ["--batch-size", *rates, "data costs", "bottleneck"]
        assert runs_table(sweep).rows == [
            ["16", "20", "320", "12.3", "198", "38 %", "transforms"],
            ["32", "20", "640", "19.5", "625", "2 %", "none"],
        ]
        assert notes(sweep) == [] == sweep.rivals
        assert sentence(sweep) == "Most samples/s without a remedy: 625, with --batch-size=32."

    def test_a_lead_that_two_analyses_may_differ_by_is_not_certain(self) -> None:
        """Two analyses of one script differ by up to 9 % on a device, and by more where the loop waits for the host."""
        sweep = Sweep("train.py", 3, [run(), run("32", 28.0), run("2", 0.2, 2)])
        assert [one.written for one in sweep.rivals] == ["--batch-size=16"]
        assert sentence(sweep).endswith("with --batch-size=32; not certainly more than with --batch-size=16.")
        shown = "--batch-size=32 makes the most samples a second, not certainly more than --batch-size=16"
        assert summarise(sweep).figures == shown

    def test_the_hand_off_alone_stands_for_a_remedy_that_does_not_pay(self) -> None:
        one = remedied(why_not="nothing moves")
        assert one.diagnosis is not None and one.no_remedy == "nothing moves"
        session = then_tried(one.diagnosis.session, HANDED_OVER, 1.6, 4, 0.8, Remedy("cuda"))
        again = Run(one.setting, one.argv, diagnose_session(session))
        assert again.speedup is not None and again.speedup.value == pytest.approx(1.6)
        assert again.remedied is not None and again.remedied.value == pytest.approx(20.0)
        assert again.no_remedy == ""

    def test_with_remedy(self) -> None:
        sweep = Sweep("train.py", 2, [remedied(), remedied("32", why_not="torchvision is missing")])
        assert runs_table(sweep).headers[-5:] == [
            "remedied steps/s",
            "remedied samples/s",
            "gain",
            "data costs",
            "bottleneck",
        ]
        assert runs_table(sweep).rows == [
            ["16", "20", "640", "12.3", "395", "25", "800", "2x", "38 %", "transforms"],
            ["32", "20", "640", "12.3", "395", "", "", "", "38 %", "transforms"],
        ]
        assert notes(sweep) == ["--batch-size=32: no remedy: torchvision is missing"]

    def test_a_remedy_that_does_not_pay(self) -> None:
        sweep = Sweep("train.py", 1, [remedied(faster=0.5)])
        assert runs_table(sweep).rows[0][5:8] == ["6.25", "200", "0.5x"]
        assert notes(sweep) == ["--batch-size=16: no remedy: the loop is slower under it"]

    def test_a_run_that_failed(self) -> None:
        sweep = Sweep("train.py", 2, [run(), FAILED])
        assert runs_table(sweep).rows[1] == ["512", "", "", "", "", "", "failed"]
        assert notes(sweep) == ["--batch-size=512: the script ended with exit code 1: OutOfMemoryError: no"]
        assert sentence(sweep) == "", "one alone is no choice"

    def test_runs_that_were_not_made(self) -> None:
        sweep = Sweep("train.py", 3, [run(why_not="interrupted")])
        assert notes(sweep) == ["--batch-size=16: interrupted", "2 of 3 runs were not made"]

    def test_a_partial_run(self) -> None:
        session = make(climbing())
        session.windows = [window for window in session.windows if window.rung != "raw"]
        made = Run(BATCH, ["train.py"], diagnose_session(session))
        assert notes(Sweep("train.py", 1, [made])) == ["--batch-size=16: PARTIAL: some rungs lack windows"]

    def test_without_a_batch_size(self) -> None:
        one = run()
        one.diagnosis.session.loader.batch_size = None
        assert runs_table(Sweep("train.py", 1, [one])).rows[0] == ["16", "20", "", "12.3", "", "38 %", "transforms"]


class TestReports:
    sweep = Sweep("train.py", 3, [run(), FAILED])

    def test_bars_in_values(self) -> None:
        one = Run((("--mode", "a|b"),), ["train.py"], None, 1, "why")
        assert "| a\\|b |" in RENDERERS[".md"](Sweep("train.py", 1, [one]))

    def test_json(self) -> None:
        told = json.loads(RENDERERS[".json"](self.sweep))
        assert (told["script"], told["planned"], told["schema_version"]) == ("train.py", 3, 1)
        one, failed = told["runs"]
        assert one["setting"] == {"--batch-size": "16"}
        assert one["ceiling"]["samples_per_s"] == {"value": 320.0, "low": 320.0, "high": 320.0}
        assert one["baseline"]["steps_per_s"]["value"] == pytest.approx(1000 / 81, abs=1e-6)
        assert one["remedied"] == {"steps_per_s": None, "samples_per_s": None}
        assert (one["bottleneck"], one["exit_code"], one["why_not"]) == ("transform", 0, None)
        assert Session.from_dict(one["report"]["session"]).windows
        assert (failed["report"], failed["exit_code"], failed["why_not"]) == (None, 1, FAILED.why_not)


class TestCommand:
    @pytest.fixture
    def answers(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Request]]:
        """Let the runs return these sessions, or raise these errors, in turn; collect the requests."""

        def prepare(*results: Session | BaseException) -> list[Request]:
            requests: list[Request] = []

            def analyze_script(request: Request, progress: Any) -> Session:
                requests.append(request)
                result = results[len(requests) - 1]
                if isinstance(result, BaseException):
                    raise result
                return result

            monkeypatch.setattr("pipediag.host.passes.analyze_script", analyze_script)
            return requests

        return prepare

    def session(self, exit_code: int = 0, error: str = "", ended: str = "settled", windows: bool = True) -> Session:
        session = make(climbing(raw=30.0)) if windows else Session()
        session.script.exit_code, session.script.error, session.ended = exit_code, error, ended
        return session

    def test_each_point_is_measured(self, main: Main, script: Path, answers: Callable[..., list[Request]]) -> None:
        requests = answers(*[self.session() for _ in range(4)])
        options = ["--vary=--batch-size=16,32", "--vary", "-w=0,2", "--budget", "90", "--apply"]
        code, out, err = main("sweep", "-v", *options, script, "--batch-size", "8")
        assert code == 0
        assert [request.target.args for request in requests] == [
            ["--batch-size", "16", "-w", "0"],
            ["--batch-size", "16", "-w", "2"],
            ["--batch-size", "32", "-w", "0"],
            ["--batch-size", "32", "-w", "2"],
        ]
        assert {(request.budget, request.apply) for request in requests} == {(90.0, 30.0)}
        assert out.startswith("4 OF 4 RUNS MEASURED: ") and str(script) in out
        assert err.splitlines()[:2] == [
            "pipediag: 4 runs of 90 s and 30 s for the remedy at most: 8 min, plus the script's own start-up; "
            "each time it really runs, several times if it is short, and writes its files; --workdir DIR puts them "
            "into DIR",
            "pipediag: run 1 of 4: --batch-size=16 -w=0",
        ]

    def test_failures_are_rows(self, main: Main, script: Path, answers: Callable[..., list[Request]]) -> None:
        answers(
            self.session(),
            self.session(1, "OutOfMemoryError: CUDA out of memory", "script-failed", windows=False),
            NothingMeasured("the script ended before one window could be measured"),
            self.session(9, ended="script-failed"),
        )
        code, out, err = main("sweep", "-v", "--vary=--n=1,2,3,4", script)
        assert code == 0
        assert out.startswith("2 OF 4 RUNS MEASURED")
        assert "--n=2: the script ended with exit code 1: OutOfMemoryError: CUDA out of memory" in out
        assert "--n=3: the script ended before one window could be measured" in out
        assert "pipediag: --n=4: the script ended with exit code 9" in err

    def test_nothing_measured(self, main: Main, script: Path, answers: Callable[..., list[Request]]) -> None:
        answers(NothingMeasured("no"), self.session(1, windows=False))
        code, out, _ = main("sweep", "-v", "--vary=--n=1,2", script)
        assert code == 1 and out.startswith("0 OF 2 RUNS MEASURED")

    def test_an_interruption_keeps_what_was_measured(
        self, main: Main, script: Path, tmp_path: Path, answers: Callable[..., list[Request]]
    ) -> None:
        requests = answers(self.session(), self.session(130, ended="interrupted", windows=False))
        code, out, _ = main("sweep", "-v", "--vary=--n=1,2,3", "-o", tmp_path / "s.json", script)
        assert code == 130 and len(requests) == 2
        assert "--n=2: interrupted" in out and "1 of 3 runs were not made" in out
        assert len(json.loads((tmp_path / "s.json").read_text())["runs"]) == 2

    def test_an_interruption_between_two_runs(
        self, main: Main, script: Path, answers: Callable[..., list[Request]]
    ) -> None:
        answers(self.session(), KeyboardInterrupt())
        code, out, _ = main("sweep", "-v", "--vary=--n=1,2", script)
        assert code == 130 and out.startswith("1 OF 2 RUNS MEASURED")

    def test_reports_are_written_after_each_run(
        self, main: Main, script: Path, tmp_path: Path, answers: Callable[..., list[Request]]
    ) -> None:
        """If the machine goes down, only the current run is lost."""
        answers(self.session(), RuntimeError("the machine goes down"))
        report = tmp_path / "s.json"
        with pytest.raises(RuntimeError, match="goes down"):
            main("sweep", "--vary=--n=1,2", "-o", report, script)
        assert len(json.loads(report.read_text())["runs"]) == 1

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (["--vary=--n"], "--vary --n"),
            (["--vary=--n=1", "--vary=--n=2"], "separated by commas"),
            (["--vary=--n=1", "-o", "x.pdf"], "x.pdf"),
            (["--vary=--n=1", "--rungs", "nonsense"], "--rungs"),
            ([], "--vary"),
        ],
    )
    def test_usage(self, main: Main, script: Path, options: list[str], told: str) -> None:
        code, out, err = main("sweep", *options, script)
        assert (code, out) == (2, "")
        assert told in err

    def test_no_such_script(self, main: Main, tmp_path: Path) -> None:
        assert main("sweep", "--vary=--n=1", tmp_path / "nowhere.py")[0] == 2
