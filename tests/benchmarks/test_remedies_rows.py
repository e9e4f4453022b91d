"""What the remedies benchmark makes of reports, rounds and losses, on made ones; and diffs carried out."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.remedies.cases import EXAMPLES, PLANTED, named, quick
from benchmarks.remedies.clock import Ask, SpotChecks, WindowTimes, _Window
from benchmarks.remedies.patching import DoesNotApply, applied
from benchmarks.remedies.rows import (
    agreement,
    beside_plain,
    broken,
    certificate,
    is_close,
    merged,
    never_worse,
    of_analysis,
    of_bounds,
    of_training,
    same_losses,
)
from benchmarks.remedies.slots import divided
from benchmarks.remedies.tables import line, of_files, predictions, summary, table
from benchmarks.remedies.turns import Taken
from pipediag.analysis import diagnose_session
from pipediag.session import REMEDIED, Place, Proof, Remedy, Rung, Session, Window

from ..made import climbing, inside, make, torchvisions

Json = dict[str, Any]


def interval(value: float, low: float, high: float) -> Json:
    return {"value": value, "low": low, "high": high}


def trained(planned: bool = True, **taken: Any) -> Json:
    """The row of a case whose plain runs had the losses 2 and 1."""
    taken.setdefault("rates", {"plain": [10.0, 10.0, 10.0], "run": [20.0, 20.0, 20.0]})
    taken["losses"] = {"plain": [2.0, 1.0], "again": [2.0, 1.0], **taken.get("losses", {"run": [2.0, 1.0]})}
    return {"case": "one", "status": "applied", "applied": True, **of_training(Taken(**taken), planned)}


class TestNeverWorse:
    @pytest.mark.parametrize(
        ("run", "verdict"),
        [([9.9, 9.9, 9.9], "holds"), ([9.0, 9.0, 9.0], "slower"), ([9.0, 10.0, 11.0], "open"), ([20.0] * 3, "holds")],
    )
    def test_by_the_interval_of_the_paired_ratio(self, run: list[float], verdict: str) -> None:
        assert never_worse(trained(rates={"plain": [10.0] * 3, "run": run})) == verdict

    def test_rounds_are_paired(self) -> None:
        row = trained(rates={"plain": [10.0, 20.0, 40.0], "run": [11.0, 22.0, 44.0]})
        assert row["ratios"]["run/plain"] == interval(1.1, 1.1, 1.1)

    def test_without_a_plan_the_script_stays_as_it_is(self) -> None:
        row = trained(planned=False, rates={"plain": [10.0] * 3, "run": [5.0] * 3})
        assert (never_worse(row), beside_plain(row)) == ("plain", "slower")

    def test_a_run_that_fails_is_no_success(self) -> None:
        for rates in ({"plain": [10.0]}, {"plain": [10.0] * 3, "run": [20.0] * 3}):
            assert never_worse(trained(rates=rates, failed={"run": "exit code 2"})) == "failed"

    def test_one_round_leaves_it_open(self) -> None:
        row = trained(rates={"plain": [10.0], "run": [20.0]})
        assert row["ratios"]["run/plain"]["high"] is None and never_worse(row) == "open"


class TestLosses:
    def test_equal(self) -> None:
        assert same_losses(trained()) == "equal"

    def test_over_the_common_length(self) -> None:
        assert agreement([2.0, 1.0, 0.5], [2.0, 1.0]) == {"compared": 2, "equal": True, "largest": 0.0}

    def test_apart_in_parts_of_the_larger(self) -> None:
        assert agreement([2.0, 1.0], [2.0, 0.8]) == {"compared": 2, "equal": False, "largest": pytest.approx(0.2)}

    def test_no_number_is_no_agreement(self) -> None:
        assert agreement([1.0], [float("nan")]) == {"compared": 1, "equal": False, "largest": None}

    @pytest.mark.parametrize(("exact", "verdict"), [(True, "DIFFER"), (False, "near")])
    def test_whether_they_had_to_be_equal(self, exact: bool, verdict: str) -> None:
        row = trained(losses={"run": [2.0, 1.1]})
        assert same_losses({**row, "certificate": {"exact": exact}}) == verdict

    def test_what_plain_runs_differ_by_is_not_held_against_it(self) -> None:
        row = trained(losses={"run": [2.0, 1.1], "again": [2.0, 1.2]})
        assert same_losses({**row, "certificate": {"exact": True}}) == "as plain"

    def test_none_were_printed(self) -> None:
        assert same_losses(trained(losses={"run": []})) == "-" == same_losses(trained(losses={}))


def proof(*largest: float | None, levels: float = 0.0) -> Json:
    apart = [{"largest": one, "levels": False} for one in largest] + [{"largest": levels, "levels": True}]
    return {"passed": True, "draws_equal": True, "samples": 8, "apart": apart}


class TestCertificate:
    def test_the_farthest_pixel(self) -> None:
        found = certificate(proof(0.0, 1e-6, levels=2.0))
        assert found is not None and not found["exact"]
        assert (found["of_range"], found["levels"]) == (1e-6, 2.0)

    def test_equal(self) -> None:
        found = certificate(proof(0.0, 0.0))
        assert found is not None and found["exact"]

    def test_infinitely_far_is_not_equal(self) -> None:
        found = certificate(proof(0.0, None))
        assert found is not None and found["of_range"] is None and not found["exact"]

    def test_there_is_none(self) -> None:
        assert certificate(None) is None


def tried(speedup: float) -> Session:
    """Transforms that starve the loop, and a trial of them on the device."""
    ladder = {**climbing(host=0.5, worker=0.5, sample=0.5), "raw": 120.0, "warm": 120.0, "baseline": 120.0}
    busy = {"worker_ms": 400.0, "worker_cpu": 1.0, "process_cpu": 1.0}
    chain = torchvisions(inside(4.0, 4.0, load=2.0), "RandomResizedCrop", "ColorJitter")
    session = make(ladder, noise=0.0, evidence={"baseline": busy}, inside=chain)
    moved = [Place(link.name, link.where) for link in chain.links]
    session.remedy = Remedy(device="cuda:0", moved=moved, proof=Proof(passed=True, samples=8, draws_equal=True))
    session.rungs[REMEDIED] = Rung(REMEDIED)
    for round_ in range(10, 14):
        session.windows += [Window("baseline", round_, 10, 1.2), Window(REMEDIED, round_, 10, 1.2 / speedup)]
    return session


class TestOfAnalysis:
    def test_what_is_kept(self) -> None:
        row = of_analysis(diagnose_session(tried(2.0)).to_dict())
        assert (row["status"], row["moved"], row["certificate"]["exact"]) == (
            "applied",
            ["RandomResizedCrop", "ColorJitter"],
            True,
        )
        assert row["steps_per_s"]["remedied"]["value"] == pytest.approx(1000 / 60)
        assert row["steps_per_s"]["ceiling"]["value"] == pytest.approx(20.0, rel=0.01)
        assert row["measured"]["value"] == pytest.approx(2.0)

    @pytest.mark.parametrize("speedup", [0.5, 2.0])
    def test_the_blind_prediction_does_not_know_the_outcome(self, speedup: float) -> None:
        untried = tried(2.0)
        untried.remedy = None
        untried.windows = [window for window in untried.windows if window.rung != REMEDIED]
        del untried.rungs[REMEDIED]
        alone = next(one for one in diagnose_session(untried).recommendations if one.id == "offload").predicted
        row = of_analysis(diagnose_session(tried(speedup)).to_dict())
        assert alone is not None and row["predicted_blind"] == alone.to_dict() and alone.value > 1.5
        assert (row["predicted"] is None) == (speedup < 1), "the report does not recommend what has not paid"


class TestBounds:
    def bounds(self, ceiling: float = 20.0, **raw: list[float]) -> Json:
        rates = {"ceiling": interval(ceiling, ceiling, ceiling), "remedied": interval(16.0, 16.0, 16.0)}
        trained_ = trained(rates={"plain": [4.0, 8.0, 4.0], "run": [16.0, 32.0, 16.0], **raw})
        return of_bounds({**trained_, "steps_per_s": rates})

    def test_the_better_supply_is_paired_with_the_run(self) -> None:
        found = self.bounds(100.0, raw_pinned=[20.0, 40.0, 20.0], raw_pageable=[10.0, 80.0, 10.0])
        assert found["raw_supply"] == 20.0 and found["reached"] == interval(0.8, 0.8, 0.8)
        assert found["reached_in_trial"] == pytest.approx(0.8)

    def test_the_loop_limits_where_it_is_slower(self) -> None:
        found = self.bounds(16.0, run=[16.0, 16.0, 16.0], raw_pinned=[20.0, 20.0, 20.0])
        assert found["raw_supply"] == 20.0 and found["reached"]["value"] == found["reached_in_trial"] == 1.0

    def test_without_a_raw_supply_there_is_no_bound(self) -> None:
        assert set(self.bounds().values()) == {None}

    def test_a_raw_loader_has_no_losses(self) -> None:
        assert "raw_pinned" not in trained(losses={"run": [2.0, 1.0], "raw_pinned": []})["losses"]


def test_a_case_that_could_not_be_analysed_has_a_row() -> None:
    row = {"case": "one", **broken("exit code 1")}
    assert "not analysed" in summary([row]) and "exit code 1" in line(row)
    for part in ("examples", "planted"):
        assert table(part, [row]).splitlines()[2].count("| -") >= 4


def test_a_prediction_is_held_against_what_was_measured() -> None:
    assert is_close(interval(2.0, 1.0, 3.0), interval(2.3, 2.2, 2.4))
    assert not is_close(interval(2.0, 1.0, 3.0), interval(2.31, 2.2, 2.4))


def test_predictions_are_counted() -> None:
    measured = interval(2.0, 1.9, 2.1)
    rows = [
        {"case": "right", "predicted": None, "predicted_blind": interval(1.9, 1.0, 3.0), "measured": measured},
        {"case": "wrong", "predicted": None, "predicted_blind": interval(4.0, 3.0, 5.0), "measured": measured},
        {"case": "unforeseen", "predicted": None, "predicted_blind": None, "measured": measured},
        {"case": "vain", "predicted": None, "predicted_blind": interval(4.0, 3.0, 5.0), "measured": None},
    ]
    told = predictions([{**row, "applied": True} for row in rows])
    assert "before: 1 of 2 within 15%, 1 of 2 intervals hold the measured value; 1 measured without" in told
    assert "not measured: vain" in told


def test_a_row_takes_the_place_of_its_case_in_the_cases_order() -> None:
    rows = merged([{"case": "b", "n": 1}, {"case": "c", "n": 1}], {"case": "b", "n": 2}, ["c", "b"])
    assert rows == [{"case": "c", "n": 1}, {"case": "b", "n": 2}]


def test_tables_of_files(tmp_path: Path) -> None:
    row = {**trained(), "verdict": "transform", "error": "", "took_s": 1.0, "predicted": None}
    row |= {"predicted_blind": None, "measured": interval(2.0, 1.9, 2.1), "why": None}
    file = tmp_path / "remedies_planted-cpu.json"
    facts = {"device": "cpu", "cores": 2, "torch": "2.6", "part": "planted", "quick": True}
    file.write_text(json.dumps({**facts, "rows": [row]}))
    told = of_files([file])
    assert "2.00 (2.00 to 2.00)" in told and "1 holds" in told and "speeds mean nothing" in told
    assert "spot check" not in told
    file.write_text(json.dumps({**facts, "rows": [row, {**row, "checking_s": [0.5, 0.25]}]}))
    assert "repeated because of a spot check: 2; it took 0.25 to 0.50 s" in of_files([file])


def test_a_case_that_several_files_hold_is_predicted_by_the_longest_analysis(tmp_path: Path) -> None:
    row = {**trained(), "verdict": "transform", "error": "", "took_s": 1.0, "predicted": None, "why": None}
    row |= {"predicted_blind": None}
    facts = {"device": "cpu", "cores": 2, "torch": "2.6", "part": "planted", "quick": False}
    short, long = tmp_path / "short.json", tmp_path / "long.json"
    short.write_text(json.dumps({**facts, "rows": [{**row, "analysis_s": 8.0, "measured": interval(3.0, 2.9, 3.1)}]}))
    rows = [{**row, "analysis_s": 25.0, "measured": interval(5.0, 4.9, 5.1)}]
    long.write_text(json.dumps({**facts, "training": False, "rows": rows}))
    for files in ([short, long], [long, short]):
        told = of_files(files)
        assert told.count("planted, cpu") == 1, "an analysis alone has no table of trainings"
        predicted = told[told.index("predicted and measured") :]
        assert "5.00 (4.90 to 5.10)" in predicted and "3.00" not in predicted


def unified(before: str, after: str, name: str) -> str:
    """As ``patch`` takes it, and as the report prints it."""
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), name, name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


class TestDiffs:
    BEFORE = "".join(f"line {number}\n" for number in range(20))

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("line 0\n", "new\nline 0\n"),
            ("line 7\n", "line 7\nnew\n"),
            ("line 19\n", "line 19\nnew"),
            ("line 3\nline 4\n", ""),
            ("line 1", "new"),
        ],
    )
    def test_what_the_report_prints_gives_the_changed_file(self, old: str, new: str) -> None:
        after = self.BEFORE.replace(old, new)
        assert applied(unified(self.BEFORE, after, "train.py"), self.BEFORE) == after

    def test_a_file_without_a_last_newline(self) -> None:
        before, after = "one\ntwo", "one\nnew\ntwo"
        assert applied(unified(before, after, "train.py"), before) == after

    def test_another_file_is_refused(self) -> None:
        diff = unified(self.BEFORE, self.BEFORE.replace("line 7", "new"), "train.py")
        with pytest.raises(DoesNotApply, match="line 5 is not"):
            applied(diff, self.BEFORE.replace("line 4", "other"))

    def test_no_diff_is_refused(self) -> None:
        with pytest.raises(DoesNotApply):
            applied("", self.BEFORE)


class TestSlots:
    def test_one_has_all(self) -> None:
        (slot,) = divided(1, [0, 1, 2], ["0", "1"])
        assert slot.cores == {0, 1, 2} and slot.environment == {}

    def test_each_has_a_gpu_and_cores_of_its_own(self) -> None:
        one, other = divided(2, range(8), ["4", "7"])
        assert (one.cores, other.cores) == ({0, 1, 2, 3}, {4, 5, 6, 7})
        assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in (one, other)] == ["4", "7"]

    @pytest.mark.parametrize(("cores", "gpus"), [(8, ["0"]), (3, [])])
    def test_too_many(self, cores: int, gpus: list[str]) -> None:
        with pytest.raises(ValueError, match="2 jobs need"):
            divided(2, range(cores), gpus)


class TestCases:
    def test_names_are_known_once(self) -> None:
        names = [case.name for case in (*EXAMPLES, *PLANTED)]
        assert len(set(names)) == len(names) and len(PLANTED) >= 20

    def test_those_named_are_chosen_of_their_part(self) -> None:
        assert [case.name for case in named("planted", ["imagefolder", "heavy"])] == ["heavy"]
        with pytest.raises(KeyError):
            named("planted", ["no such case"])

    @pytest.mark.parametrize("case", [*EXAMPLES, *PLANTED], ids=lambda case: case.name)
    def test_the_number_of_workers_is_that_of_the_arguments(self, case: Any) -> None:
        for one in (case, quick(case)):
            last = max(place for place, word in enumerate(one.arguments) if word == "--workers")
            assert one.arguments[last + 1] == str(one.workers)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is a second later than the one before."""
    times = iter(float(second) for second in range(100))
    monkeypatch.setattr("benchmarks.remedies.clock.time.perf_counter", lambda: next(times))


@pytest.mark.usefixtures("seconds")
def test_a_window_holds_whole_rounds_after_settling() -> None:
    window = _Window(Ask(settle=2, seconds=1.0, whole=3), SpotChecks())
    answers = [window.after_step() for _ in range(5)]
    assert answers[:4] == [None] * 4
    assert answers[4] == WindowTimes(steps=3, seconds=2.0, checking=0.0) and answers[4].rate == 1.5


@pytest.mark.usefixtures("seconds")
def test_a_spot_check_within_a_window_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(SpotCheck=type("SpotCheck", (), {"doubt": lambda self: "pixels"}))
    monkeypatch.setitem(sys.modules, "pipediag.remedy.spotcheck", made)
    checks, check = SpotChecks(), made.SpotCheck()
    checks.watch()
    checks.watch()
    check.doubt()  # before the window: it is none of its time
    window = _Window(Ask(settle=1, seconds=0.0), checks)
    window.after_step()
    assert check.doubt() == "pixels"
    told = window.after_step()
    assert told is not None and told.checking == 1.0 == checks.seconds / 2
