"""The heaviest parts of recorded steps, and reports of a profile or of why there is none."""

from __future__ import annotations

import io
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.numbers.profile import MOST, Path, Piece, heaviest, heaviest_modules
from pipediag.host.connections import Job
from pipediag.host.passes import Request, analyze_script
from pipediag.host.progress_line import ProgressLine
from pipediag.host.script import Target
from pipediag.host.supervision import Outcome, Watch
from pipediag.measure.schedule import Plan
from pipediag.report import markdown, text
from pipediag.report.document import filled
from pipediag.report.evidence import model_section
from pipediag.session import Prefix, Profile, Session, Share
from pipediag.session.events import FirstBatch, Looking

from ..made import FLAT, make


class TestHeaviest:
    def test_by_name_for_each_step(self) -> None:
        pieces = [Piece("mm", 2.0), Piece("add", 1.0), Piece("mm", 4.0), Piece("add", 1.0)]
        assert heaviest(pieces, 2) == [Share("mm", 1.0, 3.0), Share("add", 1.0, 1.0)]

    def test_no_more_than_fit_into_a_table(self) -> None:
        found = heaviest([Piece(str(ms), float(ms)) for ms in range(20)], 1)
        assert [share.ms for share in found] == [float(ms) for ms in range(19, 19 - MOST, -1)]

    def test_what_takes_nothing_is_left_out(self) -> None:
        assert heaviest([Piece("view", 0.0)], 1) == []


def modules(times: dict[str, float], calls: dict[Path, int] | None = None, steps: int = 1) -> list[tuple[str, float]]:
    pieces = [Piece("op", ms, tuple(filter(None, name.split(".")))) for name, ms in times.items()]
    return [(share.name, share.ms) for share in heaviest_modules(pieces, calls or {}, steps)]


class TestModules:
    def test_a_model_shows_as_its_blocks(self) -> None:
        times = {"net.a.0": 10.0, "net.a.1": 5.0, "net.b": 4.0, "net.c": 3.0}
        assert modules(times) == [("net.a.0", 10.0), ("net.a.1", 5.0), ("net.b", 4.0), ("net.c", 3.0)]

    def test_small_ones_are_not_opened(self) -> None:
        assert modules({"net.x": 2.0, "net.y": 2.0, "head.big": 90.0}) == [("head.big", 90.0), ("net", 4.0)]

    def test_what_a_module_does_by_itself_is_a_row(self) -> None:
        assert modules({"net": 5.0, "net.a": 20.0, "net.b": 1.0}) == [("net.a", 20.0), ("net", 5.0), ("net.b", 1.0)]

    def test_rows_do_not_overlap(self) -> None:
        times = {"net.a": 6.0, "net.a.0": 7.0, "net.b": 8.0, "loss": 1.0}
        assert sum(ms for _, ms in modules(times)) == sum(times.values())

    def test_what_runs_outside_of_all_is_no_module(self) -> None:
        assert modules({"": 50.0, "net": 1.0}) == [("net", 1.0)]
        assert modules({"": 50.0}) == []

    def test_calls_of_a_step(self) -> None:
        pieces = [Piece("op", 6.0, ("net",))]
        assert heaviest_modules(pieces, {("net",): 6}, 3) == [Share("net", 2.0, 2.0)]


PROFILE = Profile(
    trace="/x/trace.json",
    steps=5,
    step_ms=40.0,
    busy_ms=30.0,
    operators=[Share("convolution_backward", 20.0, 10.0)],
    kernels=[Share("sgemm_128x64", 3.5, 8.0)],
    modules=[Share("model.layer4", 1.0, 20.0)],
)
PREFIX = Prefix(["encoder"], 5.0, 7.0)


def session(profile: Profile | None = None, prefix: Prefix | None = None) -> Session:
    made = make({**FLAT, "supply": 40.0})  # the loader could do more, so a shorter step would show
    made.profile, made.prefix = profile, prefix
    return made


class TestReports:
    def test_no_trace(self) -> None:
        found = model_section(diagnose_session(session(Profile(why_not="two cannot record at once"))))
        assert text.write([found]) == "the model's side:\n  - no trace was recorded: two cannot record at once\n"

    def test_nothing_was_looked_at(self) -> None:
        assert filled([model_section(diagnose_session(session()))]) == []

    def test_many_frozen_modules(self) -> None:
        found = Prefix([f"net.{number}" for number in range(9)], 5.0, 7.0)
        (line,) = markdown.write([model_section(diagnose_session(session(prefix=found)))]).splitlines()[2:]
        assert line.endswith("learns nothing: net.0 to net.8 (9 modules)")

    def test_a_frozen_part_that_cannot_run_ahead(self) -> None:
        found = Prefix(["encoder"], 5.0, 7.0, why_not="weights of encoder change")
        diagnosis = diagnose_session(session(prefix=found))
        (line,) = markdown.write([model_section(diagnosis)]).splitlines()[2:]
        assert line.endswith("learns nothing: encoder; it cannot run a batch ahead: weights of encoder change")
        assert "frozen-prefix" not in {one.id for one in diagnosis.recommendations}

    def test_modules_could_not_be_watched(self) -> None:
        found = Prefix([], 0.0, 0.0, why_not="they change")
        diagnosis = diagnose_session(session(prefix=found))
        (line,) = markdown.write([model_section(diagnosis)]).splitlines()[2:]
        assert line == "- whether a frozen part of the model could run a batch ahead is not known: they change"
        assert "frozen-prefix" not in {one.id for one in diagnosis.recommendations}

    def test_json(self) -> None:
        evidence = diagnose_session(session(PROFILE, PREFIX)).to_dict()["evidence"]
        assert evidence["profile"]["modules"] == [{"name": "model.layer4", "calls": 1.0, "ms": 20.0}]
        assert evidence["prefix"]["modules"] == ["encoder"]

    @pytest.mark.parametrize("profile", [None, PROFILE])
    def test_what_to_look_at_next(self, profile: Profile | None) -> None:
        (one,) = [one for one in diagnose_session(session(profile)).recommendations if one.id == "model"]
        told = " ".join([*one.evidence, one.how])
        assert ("pipediag analyze --profile trace.json" in told) == (profile is None)
        assert ("model.layer4 takes 20 ms" in told) == (profile is not None)


def test_an_event_fills_it() -> None:
    filled = Session()
    filled.apply("profile", {"trace": "t.json", "steps": 5, "operators": [{"name": "mm", "calls": 2, "ms": 1}]})
    assert filled.profile == Profile("t.json", 5, operators=[Share("mm", 2.0, 1.0)])
    assert Session.from_dict(filled.to_dict()) == filled


def test_it_is_told_while_it_is_done() -> None:
    said = io.StringIO()
    progress = ProgressLine(said)
    progress(Looking("", 6.0), Session())
    assert said.getvalue() == ""
    progress(Looking("5 steps with torch's profiler", 30.0), Session())
    assert said.getvalue() == "pipediag: recording 5 steps with torch's profiler\n"


class TestPasses:
    @pytest.mark.parametrize("file", ["", "/x/trace.json"])
    def test_a_script_that_ends_too_early(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, file: str) -> None:
        """If a requested profile is missing, the report says why."""
        script = tmp_path / "train.py"
        script.touch()
        plans: list[Plan] = []

        def one_pass(target: Target, plan: Plan, job: Job, *args: Any) -> Outcome:
            plans.append(plan)
            job.session.windows += make({"baseline": 5.0}).windows
            return Outcome()

        monkeypatch.setattr("pipediag.host.passes.one_pass", one_pass)
        done = analyze_script(Request(Target(str(script)), profile=file), lambda *args: None)
        assert {plan.profile for plan in plans} == {file}
        assert (done.profile is not None) == bool(file)
        assert done.profile is None or "ended before" in done.profile.why_not

    def test_a_look_at_the_model_has_time_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        watch = Watch(Plan(budget=10.0), Session())
        watch.note(FirstBatch())
        now[0] = 20.0
        watch.note(Looking("", 30.0))
        now[0] = 60.0
        assert not watch.overdue()
        now[0] = 66.0
        assert watch.overdue()
