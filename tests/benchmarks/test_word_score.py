"""How answers are held against native turns and against each other, and how cells are kept, continued and joined."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.common import ENVIRONMENT
from benchmarks.word import asking, native
from benchmarks.word.busy import busy
from benchmarks.word.cases import CASES, KNOWN
from benchmarks.word.cells import missing
from benchmarks.word.results import Results, join
from benchmarks.word.score import (
    Totals,
    by_line,
    contradictions,
    faults,
    line,
    outcome,
    stages,
    table,
    totals,
    truth,
)
from pipediag.analysis import diagnose_session
from pipediag.session import Session
from tests.made import FLAT, blocks, climbing, make, waits

Json = dict[str, Any]
NONE, SLOW, BUSY = KNOWN["own_step"], KNOWN["slow_transform"], KNOWN["busy_workers"]


def turn(kind: str, ms: float, waited_ms: float = 0.0) -> Json:
    return {"turn": kind, "ms": ms, "waited_ms": waited_ms, "cpu_ms": 1.0, "steps": 60}


def turns(plain: float, cached: float, waited_ms: float = 0.0, spread: float = 0.0, free: float | None = None) -> list:
    """Two pairs of turns; the plain step of the second is longer by ``spread``."""
    pairs = [turn("plain", plain, waited_ms), turn("cached", cached)]
    pairs += [turn("plain", plain * (1 + spread), waited_ms), turn("cached", cached)]
    return pairs if free is None else [*pairs, turn("free", free)]


def said(
    bottleneck: str, value: float, low: float | None, high: float | None, *, level: str = "proven", certain: bool = True
) -> Json:
    verdict = {"bottleneck": bottleneck, "level": level, "culprit": None}
    claimed = {"value": value, "low": low, "high": high}
    return {"repeat": 0, "error": "", "seconds": 30.0, "certain": certain, "claimed": claimed, "verdict": verdict}


def failed() -> Json:
    return {"repeat": 0, "error": "exit code 1", "seconds": 3.0}


def cell(script: str, timed: list, *answers: Json, load: int = 0, tool: str = "1+a") -> Json:
    numbered = [{**one, "repeat": number} for number, one in enumerate(answers)]
    return {"script": script, "load": load, "tool": tool, "turns": timed, "answers": numbered}


def truth_of(*args: Any, **more: Any) -> Any:
    found = truth(cell("own_step", turns(*args, **more)))
    assert found is not None
    return found


# The truth


def test_the_truth_is_the_range_of_the_pairs() -> None:
    found = truth_of(100, 50, waited_ms=40, spread=0.25)
    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(0.6))
    assert found.value == pytest.approx(0.55)
    assert found.starves is True
    assert found.removed is None
    assert found.late + found.own == pytest.approx(1)


@pytest.mark.parametrize(
    ("plain", "cached", "spread", "starves"),
    [(100, 99, 0.0, False), (100, 80, 0.0, True), (100, 99, 0.2, None), (100, 110, 0.0, False)],
)
def test_whether_the_loop_starves_is_open_if_the_pairs_disagree(
    plain: float, cached: float, spread: float, starves: bool | None
) -> None:
    assert truth_of(plain, cached, spread=spread).starves is starves


def test_without_a_pair_there_is_no_truth() -> None:
    assert truth(cell("own_step", [turn("plain", 100)])) is None


def test_what_the_step_takes_longer_beside_the_workers_is_no_waiting() -> None:
    found = truth_of(100, 60, waited_ms=10)
    assert (found.late, found.own) == (pytest.approx(0.25), pytest.approx(0.75))


def test_a_loop_as_fast_as_its_cache_has_no_cost_to_divide() -> None:
    found = truth_of(100, 101, waited_ms=3, free=100)
    assert (found.late, found.own, found.removed) == (0.0, 0.0, None)


# The right stages


def test_the_stage_is_asked_for_only_if_the_loop_certainly_starves() -> None:
    assert stages(SLOW, truth_of(100, 40, waited_ms=60)) == {"transform"}
    assert stages(SLOW, truth_of(100, 97)) == frozenset()
    assert stages(SLOW, truth_of(100, 99, spread=0.3)) == frozenset()


def test_a_script_without_a_cost_of_its_own_has_no_right_stage() -> None:
    assert stages(NONE, truth_of(100, 40, waited_ms=60)) == frozenset()


def test_contention_is_right_where_the_turns_show_it() -> None:
    assert stages(SLOW, truth_of(100, 40, waited_ms=30)) == {"transform", "contention"}
    assert stages(BUSY, truth_of(100, 40, waited_ms=0)) == {"transform", "contention"}
    assert stages(BUSY, truth_of(100, 40, waited_ms=60)) == {"transform"}


def test_no_stage_is_asked_for_if_the_cost_stays_without_what_causes_it() -> None:
    assert stages(SLOW, truth_of(100, 40, waited_ms=60, free=45)) == {"transform"}
    assert stages(SLOW, truth_of(100, 40, waited_ms=60, free=70)) == frozenset()


# Right and wrong


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (said("none", 0.01, 0.0, 0.03), []),
        (said("ipc", 0.10, 0.08, 0.12), []),  # within the tolerance
        (said("ipc", 0.45, 0.34, 0.53), ["share"]),
        (said("ipc", 0.20, 0.12, 0.30), []),
        (said("ipc", 0.20, 0.15, 0.30), ["share"]),
        (said("contention", 0.10, 0.08, 0.12), ["foreign"]),
        (said("contention", 0.70, 0.60, 0.85), ["share", "foreign"]),
        (said("startup", 0.30, None, None), []),  # an open interval claims nothing
    ],
)
def test_answers_on_a_loop_that_does_not_starve(answer: Json, found: list[str]) -> None:
    assert faults(NONE, truth_of(100, 99), answer) == found


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (said("transform", 0.60, 0.55, 0.65), []),
        (said("transform", 0.40, 0.35, 0.47), ["share"]),
        (said("transform", 0.40, 0.35, 0.50), []),
        (said("transform", 0.80, 0.75, 0.85), ["share"]),
        (said("load", 0.60, 0.55, 0.65), ["stage"]),
        (said("contention", 0.60, 0.55, 0.65), ["stage"]),
        (said("none", 0.02, 0.00, 0.04), ["share"]),
        (said("none", 0.04, 0.00, 0.60), ["share"]),  # none claims less than the gate, whatever its interval
    ],
)
def test_answers_on_a_loop_that_starves(answer: Json, found: list[str]) -> None:
    assert faults(SLOW, truth_of(100, 40, waited_ms=60), answer) == found


def test_none_is_no_wrong_answer_to_a_loop_that_hardly_starves() -> None:
    assert faults(SLOW, truth_of(100, 88, waited_ms=12), said("none", 0.02, 0.0, 0.04)) == []


def test_contention_is_not_foreign_where_it_is_open_whether_the_loop_starves() -> None:
    assert faults(NONE, truth_of(100, 99, spread=0.2), said("contention", 0.1, 0.08, 0.12)) == []


def test_outcomes() -> None:
    true = truth_of(100, 99)
    assert outcome(NONE, true, said("none", 0.01, 0.0, 0.03)) == "right"
    assert outcome(NONE, true, said("ipc", 0.45, 0.34, 0.53)) == "wrong"
    assert outcome(NONE, true, said("inconclusive", 0.2, 0.0, 0.5)) == "open"
    assert outcome(NONE, true, failed()) == "failed"
    assert outcome(NONE, None, said("none", 0.01, 0.0, 0.03)) == "no truth"
    assert outcome(NONE, None, said("inconclusive", 0.2, 0.0, 0.5)) == "open"


def test_the_right_line_is_in_the_costly_code_or_where_that_is_built() -> None:
    def at(where: str | None, bottleneck: str = "transform") -> bool | None:
        answer = said(bottleneck, 0.6, 0.5, 0.7)
        answer["verdict"]["culprit"] = where and {"name": "Speckle", "where": where}
        return by_line(SLOW, answer)

    rows = SLOW.source.splitlines()
    defined = 1 + next(number for number, row in enumerate(rows) if row.startswith("class Speckle"))
    built = 1 + next(number for number, row in enumerate(rows) if "Speckle()" in row)
    other = 1 + next(number for number, row in enumerate(rows) if row.startswith("class Mirror"))
    assert at(f"slow_transform.py:{defined}") is True
    assert at(f"slow_transform.py:{built}") is True
    assert at(f"slow_transform.py:{other}") is False
    assert at(f"library.py:{defined}") is False
    assert at(None) is False
    assert at(f"slow_transform.py:{defined}", "contention") is None  # names no code
    assert by_line(KNOWN["handoff"], said("ipc", 0.6, 0.5, 0.7)) is None


# Contradictions


def test_answers_contradict_each_other_if_their_intervals_do_not_meet() -> None:
    answers = (
        said("contention", 0.85, 0.77, 0.91),
        said("ipc", 0.69, 0.59, 0.76),
        said("contention", 0.76, 0.76, 0.77),
    )
    assert contradictions(cell("own_step", [], *answers)) == (3, [0.01])


def test_answers_without_an_interval_are_in_no_pair() -> None:
    open_ = said("inconclusive", 0.5, None, None)
    answers = (said("none", 0.0, 0.0, 0.01), failed(), open_)
    assert contradictions(cell("own_step", [], *answers)) == (1, [])


# Counting


def test_totals() -> None:
    cells = [
        cell("own_step", turns(100, 99), *[said("none", 0.0, 0.0, 0.02)] * 3),
        cell(
            "own_step",
            turns(100, 99),
            said("contention", 0.70, 0.60, 0.85),
            said("ipc", 0.45, 0.34, 0.53, level="intervened"),
            said("ipc", 0.45, 0.34, 0.53, level="intervened", certain=False),
            load=2,
        ),
        cell("slow_transform", turns(100, 40, 60), said("inconclusive", 0.3, 0.0, 0.6, certain=False), failed()),
    ]
    found = totals(cells)
    assert found == Totals(
        scripts=2,
        none=1,
        analyses=8,
        outcomes={"right": 3, "wrong": 3, "open": 1, "failed": 1},
        quiet=5,
        quiet_conclusive=3,
        certain=5,
        wrong_certain=2,
        wrong_proven=1,
        faults={"share": 2},
        lines=0,
        lines_asked=0,
        pairs=6,
        contradictions=2,
        unsteady=0,
        disturbed=0,
    )
    assert found.missed == [
        "1 wrong answers are proven",
        "2 of 6 pairs contradict each other",
        "3 of 5 quiet answers are conclusive",
    ]


def test_an_uncertain_wrong_answer_counts_if_it_is_called_proven() -> None:
    found = totals([cell("own_step", turns(100, 99), said("ipc", 0.45, 0.34, 0.53, certain=False))])
    assert (found.wrong_certain, found.wrong_proven) == (0, 1)


def test_three_wrong_certain_answers_are_too_many() -> None:
    wrong = said("ipc", 0.45, 0.34, 0.53, level="intervened")
    assert totals([cell("own_step", turns(100, 99), wrong, wrong)]).missed == []
    assert totals([cell("own_step", turns(100, 99), wrong, wrong, wrong)]).missed == ["3 wrong answers are certain"]


def test_nothing_is_missed_where_all_is_right() -> None:
    assert totals([cell("own_step", turns(100, 99), *[said("none", 0.0, 0.0, 0.02)] * 3)]).missed == []


def test_doubtful_truths_are_counted() -> None:
    cells = [
        cell("own_step", turns(100, 99, spread=0.2)),
        {**cell("slow_transform", turns(100, 40)), "others_used": 1.5},
        {**cell("ten_views", turns(100, 40)), "others_used": None},
    ]
    found = totals(cells)
    assert (found.unsteady, found.disturbed) == (1, 1)


def test_lines_are_counted_where_there_is_one_to_name() -> None:
    right = said("transform", 0.6, 0.5, 0.7)
    right["verdict"]["culprit"] = {"name": "Speckle", "where": f"slow_transform.py:{min(SLOW.lines)}"}
    found = totals([cell("slow_transform", turns(100, 40, 60), right, said("transform", 0.6, 0.5, 0.7))])
    assert (found.lines, found.lines_asked) == (1, 2)


# Words


def test_the_line_of_an_analysis() -> None:
    true = truth_of(100, 99)
    assert line(NONE, 2, true, said("ipc", 0.45, 0.34, 0.53)) == (
        "own_step beside 2 | ipc (proven) | 45 % (34 to 53) | certain | WRONG: share | truth 1 % (1 to 1) | 30 s"
    )
    assert line(NONE, 0, None, said("none", 0.0, 0.0, 0.02)) == (
        "own_step beside 0 | none (proven) | 0 % (0 to 2) | certain | no truth | truth ? | 30 s"
    )
    assert line(NONE, 0, true, failed()) == "own_step beside 0 | FAILED: exit code 1"


def test_the_table_has_a_row_for_a_script_and_marks_what_is_wrong() -> None:
    cells = [
        cell("own_step", turns(100, 99), *[said("none", 0.0, 0.0, 0.02)] * 3),
        cell("own_step", turns(100, 99), said("contention", 0.7, 0.6, 0.85), said("none", 0.0, 0.0, 0.02), load=2),
        cell("slow_transform", turns(100, 40, 60), failed()),
    ]
    text = table(cells)
    rows = [[part.strip() for part in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("|")]
    assert rows[0] == ["script", "right", "quiet", "beside 2 busy"]
    assert rows[2] == ["`own_step`", "none", "1 % (1 to 1): none x3", "1 % (1 to 1): **contention**, none"]
    assert rows[3] == ["`slow_transform`", "transform", "60 % (60 to 60): failed", ""]
    assert "- certain: 5, 1 of them wrong; wrong and proven: 1" in text
    assert "- not reached: 1 wrong answers are proven; 1 of 4 pairs contradict each other;" in text
    assert ["`own_step` beside 2", "70 % (60 to 85); 0 % (0 to 2)"] in rows
    wrong = ["`own_step` beside 2", "contention (proven), 70 % (60 to 85)", "yes", "1 % (1 to 1)", "share, foreign"]
    assert wrong in rows


# Certain


def report(session: Session) -> Json:
    return json.loads(json.dumps(diagnose_session(session).to_dict()))


def test_certain_is_what_the_screen_calls_so() -> None:
    starving = climbing(raw=30.0)
    proven = report(make(starving, evidence=waits(30.0, 0.4, worker_ms=320.0)))
    assert proven["verdict"]["level"] == "proven"
    assert asking.is_certain(proven)
    assert asking.is_certain(report(make(FLAT)))
    open_ = report(make({"device": 100.0, "baseline": 106.0}, rounds=1))
    assert open_["verdict"]["bottleneck"] == "inconclusive"
    assert not asking.is_certain(open_)


def test_what_was_only_observed_is_not_certain() -> None:
    seen = report(make({}, observed=blocks(12, 50.0, 30.0, 200.0, noise=0.05)))
    assert seen["verdict"]["level"] == "observed"
    assert not asking.is_certain(seen)


@pytest.mark.parametrize(
    ("words", "certain"),
    [
        ("60 to 70 %, certain", True),
        ("1 to 9 %, of which waiting is certainly below 5 %", True),
        ("60 to 70 %, not certain", False),
        ("60 to 70 %, uncertain", False),
        ("60 to 70 %, seen in 12 steps only", False),
        ("", False),
    ],
)
def test_certain_in_words(words: str, certain: bool) -> None:
    assert asking.says_certain(words) is certain


def test_an_answer_claims_the_starts_of_epochs_if_they_are_the_verdict() -> None:
    session = make(FLAT, length=10, startups=[1.0, 1.0])  # 100 ms a step in addition to 100
    found = asking.answer(report(session))
    assert found["verdict"]["bottleneck"] == "startup"
    assert found["claimed"]["value"] == pytest.approx(0.5, abs=0.01)
    calm = asking.answer(report(make(FLAT)))
    assert calm["claimed"] == report(make(FLAT))["verdict"]["starved"]
    assert calm["headline"].startswith("Your training loses no time to data")


# The files


def test_results_are_continued_and_another_version_counts_for_nothing(tmp_path: Path) -> None:
    path, facts = tmp_path / "word.json", {"device": "cpu"}
    results = Results(path, facts, hidden=["/secret/"])
    made = results.cell("own_step", 1, "1+a")
    results.add(made, "answers", {**said("none", 0.0, 0.0, 0.02), "lines": ["in /secret/own_step.py"]})
    again = Results(path, facts)
    assert missing(NONE, again.cell("own_step", 1, "1+a"), 3) == ([1, 2], True)
    assert missing(NONE, again.cell("own_step", 1, "1+b"), 3) == ([0, 1, 2], True)
    assert again.cells["own_step", 1]["answers"][0]["lines"] == ["in own_step.py"]
    again.add(again.cell("own_step", 1, "1+b"), "turns", *turns(100, 99))
    assert [(one["tool"], one["answers"]) for one in Results(path, facts).cells.values()] == [("1+b", [])]
    with pytest.raises(ValueError, match="is of cpu, not H100"):
        Results(path, {"device": "H100"})


def test_a_cell_is_complete_with_all_its_analyses_and_turns() -> None:
    answers = [said("none", 0.0, 0.0, 0.02)] * 3
    assert missing(NONE, cell("own_step", turns(100, 99), *answers), 3) == ([], False)
    assert missing(NONE, cell("own_step", turns(100, 99)[:2], *answers), 3) == ([], True)
    assert missing(SLOW, cell("slow_transform", turns(100, 40), *answers), 3) == ([], True)  # not yet without its cost
    assert missing(SLOW, cell("slow_transform", turns(100, 40, free=41), *answers), 3) == ([], False)


def content(*cells: Json, **more: Any) -> Json:
    return {"date": "2026-01-01", "device": "cpu", "cores": 2, **more, "totals": {}, "cells": [*cells]}


def test_parts_are_joined_by_cell_and_counted_together() -> None:
    first = cell("own_step", turns(100, 99), said("none", 0.0, 0.0, 0.02))
    second = cell("own_step", turns(100, 99), said("ipc", 0.45, 0.34, 0.53), load=1)
    newer = cell("own_step", turns(100, 99), said("none", 0.0, 0.0, 0.03), tool="1+b")
    joined = join([content(first, second), content(newer, date="2026-01-02")])
    assert joined["cells"] == [newer, second]
    assert joined["date"] == "2026-01-02"
    assert (joined["totals"]["analyses"], joined["totals"]["wrong_certain"]) == (2, 1)
    assert joined["totals"]["missed"] == ["1 wrong answers are proven"]


def test_parts_of_different_machines_are_not_joined() -> None:
    with pytest.raises(ValueError, match="differ in cores"):
        join([content(), content(cores=16)])


# Busy processes


def test_a_busy_process_ends_with_the_one_that_started_it() -> None:
    code = (
        "import time, psutil\nfrom benchmarks.word.busy import busy\n"
        "with busy(1):\n    print(psutil.Process().children()[0].pid, flush=True)\n    time.sleep(60)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    spinning = psutil.Process(int(starter.stdout.readline()))
    while spinning.cpu_times().user < 0.2:  # it has asked to end with the starter before it spins
        assert spinning.is_running()
    starter.kill()
    starter.wait()
    spinning.wait(timeout=10)


def test_a_busy_process_that_ended_early_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended before its time"), busy(1):
        for process in psutil.Process().children():
            if process.status() != psutil.STATUS_ZOMBIE and "lifeline" in " ".join(process.cmdline()):
                process.kill()
                process.wait()
    with busy(0):
        pass


# The scripts


def test_at_least_fourteen_scripts_six_of_which_do_not_starve_and_six_for_a_gpu() -> None:
    assert len(CASES) >= 14
    assert sum(not case.stages for case in CASES) >= 6
    assert sum(case.gpu for case in CASES) == 6
    assert any(case.gpu and case.stages for case in CASES)
    assert any(case.gpu and not case.stages for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_script_reads_and_its_cost_can_be_removed(case: Any) -> None:
    freed = case.freed
    ast.parse(freed)
    assert (freed != case.source) == bool(case.free)
    assert bool(case.lines) == bool(case.code)
    assert "--device" in case.source
    assert case.why


def test_removing_a_text_that_is_not_there_is_an_error() -> None:
    case = type(SLOW)("own_step", "", free=(("no such text", ""),))
    with pytest.raises(ValueError, match="0 times"):
        _ = case.freed


# The native turns


class Loader:
    """A loader of numbers that knows how often it was begun."""

    num_workers = 0

    def __init__(self, length: int) -> None:
        self.length, self.begun = length, 0

    def __len__(self) -> int:
        return self.length

    def begin(self) -> Any:
        self.begun += 1
        return iter([Batch(number) for number in range(self.length)])


class Batch:
    def __init__(self, number: int, kept: bool = False) -> None:
        self.number, self.kept = number, kept

    def to(self, device: str, copy: bool) -> Batch:
        return Batch(self.number, kept=True)


def train(loader: Loader, made: native.Turns, clock: Clock, ms: float, made_ms: float) -> list[list[Batch]]:
    """Train for epochs until the turns are over; a batch that is not kept takes ``made_ms`` more."""
    epochs: list[list[Batch]] = []
    while True:
        epochs.append([])
        for batch in made.feed(loader):
            epochs[-1].append(batch)
            clock.now += ms / 1000 + (0 if batch.kept else made_ms / 1000)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("whole_epochs", [False, True])
def test_turns_are_timed_plain_and_on_kept_batches(
    whole_epochs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, loader, out = Clock(), Loader(20), tmp_path / "native.json"
    monkeypatch.setattr(native.time, "perf_counter", clock)
    asked = native.Asked(str(out), ("plain", "cached", "plain"), 3.0, whole_epochs, "cpu")
    made = native.Turns(asked, lambda given: given.begin())
    with pytest.raises(SystemExit):
        train(loader, made, clock, 50.0, 150.0)
    found = json.loads(out.read_text())
    assert [one["turn"] for one in found] == ["plain", "cached", "plain"]
    assert [one["ms"] for one in found] == pytest.approx([200.0, 50.0, 200.0])
    assert all(one["steps"] * one["ms"] >= 3000 for one in found)
    if whole_epochs:
        assert all(one["steps"] % 20 == 0 for one in found)
