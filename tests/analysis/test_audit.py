"""Every item of the checklist: where it passes, fails, stays open, was not measured, or does not apply."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.audit import (
    DOES_NOT_APPLY,
    FAILED,
    NOT_MEASURED,
    OPEN,
    PASSED,
    STATUSES,
    Audit,
    Item,
    audit,
    next_round,
)
from pipediag.host.passes import Request
from pipediag.report import RENDERERS, blocks, read, text, write
from pipediag.session import (
    RUNGS,
    Knobs,
    LoaderSettings,
    Padding,
    Rung,
    Session,
    Startup,
    SyncCall,
    Syncs,
    cut_rung,
    settings_rung,
)

from ..conftest import Main
from ..golden import agrees
from ..made import DOCUMENTS, but, climbing, inside, leaf, make, then_tried, without

ITEMS = ["starvation", "supply", "startup", "cores", "knobs", "transfer", "syncs", "bytes", "unread"]
#: 50 ms of compute, which nothing holds up; the loader alone makes a batch every 25 ms.
WELL = {**climbing(), "supply": 25.0}
#: The workers give a batch every 120 ms.
STARVED = {**WELL, "raw": 120.0, "warm": 120.0, "baseline": 120.0, "supply": 118.0}
#: A loop that is limited by copying, 20 of 71 ms.
COPYING = {**climbing(host=20.0), "supply": 25.0}
GOLDEN = Path(__file__).parent / "golden" / "audit.txt"
#: How the words for an expected status begin.
WORDS = {
    "passes": PASSED,
    "fails": FAILED,
    "is open": OPEN,
    "is not measured": NOT_MEASURED,
    "does not apply": DOES_NOT_APPLY,
}
SEEN = {"worker_ms": 100.0, "worker_cpu": 1.0, "worker_queued": 0.01, "process_cpu": 1.0}


def run(ladder: Mapping[str, float] = WELL, **more: Any) -> Session:
    settings: dict[str, Any] = {"noise": 0.0, "startups": [0.5], "evidence": {"baseline": SEEN}, "leaves": [leaf()]}
    session = make(ladder, **{**settings, **more})
    session.syncs = Syncs(16)
    return session


def on_cpu() -> Session:
    session = run(without(WELL, "host"), device="cpu", absent=["host"])
    session.syncs = None
    return session


def item(session: Session, id: str, gate: float = 0.05) -> Item:
    made = audit(diagnose_session(session), gate)
    assert [one.id for one in made.items] == ITEMS
    json.dumps(made.to_dict(), allow_nan=False)
    for one in made.items:
        assert one.title and one.figures
        assert one.status in STATUSES
        assert bool(one.advice or one.todo) == (one.status == FAILED) or one.status == OPEN, one
    return next(one for one in made.items if one.id == id)


BYTES: Mapping[str, Any] = {"levels": 256, "bytes_over_255": True, "low": 0.0, "high": 1.0}
#: Chains, and workers that take 400 ms for a batch, for loops that wait for them.
CHAIN = {"inside": inside(4.0, 4.0, load=2.0)}
LATE = {**CHAIN, "evidence": {"baseline": {**SEEN, "worker_ms": 400.0}}}
KEPT = [Startup(5.0), *[Startup(0.6, renewed=True)] * 2]


def crowded(
    ladder: Mapping[str, float],
    queued: float = 0.4,
    threads: int = 1,
    cores: float = 4,
    device: str = "cuda",
    **more: float,
) -> Session:
    seen = {**SEEN, "worker_ms": 400.0, "worker_queued": queued, **more}
    found = inside(4.0, 4.0, load=2.0, threads={"torch": threads})
    session = run(ladder, inside=found, evidence={"baseline": seen}, environment={"cores": cores})
    return replace(session, device={"type": device})


def tried(faster: float) -> Session:
    """Eight rounds of the unmodified loader and of one with twice as many workers."""
    return then_tried(but(run(STARVED), knobs=Knobs([LoaderSettings(8)])), settings_rung(1), faster, 8)


def limited(ms: float, rounds: int) -> Session:
    """A loop that its workers limit to ``ms`` milliseconds a step, measured with some noise."""
    ladder = {**WELL, "raw": ms, "warm": ms, "baseline": ms, "supply": ms - 0.1}
    return run(ladder, rounds=rounds, noise=0.01, **CHAIN, evidence={"baseline": {**SEEN, "worker_ms": 4 * ms}})


def calling(*ms: float | None, busy: float = 0.5) -> Session:
    """Calls that take these milliseconds of a step of 51.2 ms, on a device that is ``busy`` with cached batches."""
    calls = [SyncCall("item()", "train.py:40", "x", 1.0, one, "Read it less often.") for one in ms]
    return but(run(evidence={"baseline": SEEN, "device": {"gpu_utilization": busy}}), syncs=Syncs(16, calls))


#: Runs by item, and by what is expected of it; golden/audit.txt holds what is said.
RUNS: dict[str, dict[str, Session]] = {
    "starvation": {
        "passes": run(),
        "fails": run(STARVED, **LATE),
        "fails, and what helps most comes first": run(
            COPYING, leaves=[leaf(non_blocking=False, **BYTES), leaf("[1]", read=False)]
        ),
        "fails, and nothing is known that helps but what helps its costliest stage in general": run(
            STARVED, evidence={}, workers=0
        ),
        "is not measured without the loop as it is": run(without(WELL, "baseline")),
        "is open after one round": run(rounds=1),
        "is open in noise": run(climbing(baseline=2.0), noise=0.03),
    },
    "supply": {
        "passes": run(),
        "fails": run(STARVED, **CHAIN),
        "fails, and nothing is known that helps but what helps its costliest stage in general": run(
            STARVED, evidence={}
        ),
        "is not measured without the loader alone": run(without(WELL, "supply")),
        "is not measured without cached batches": run({name: WELL[name] for name in ("baseline", "supply")}),
        "does not apply without workers": run(without(WELL, "worker"), workers=0),
        "is open in noise": run({**STARVED, "supply": 53.0}, noise=0.05),
        "is open after one round": run({**STARVED, "supply": 49.0}, rounds=1),
    },
    "startup": {
        "passes": run(),
        "fails": run(length=100, startups=[Startup(0.9, ready=0.5), *[Startup(0.7, ready=0.6)] * 2]),
        "fails although the workers are kept": run(length=100, startups=KEPT, persistent=True),
        "is open if it was seen once": run(length=100, startups=[Startup(0.9, ready=0.5)]),
        "is not measured of a loader without length": run(length=None),
        "is not measured without an epoch": run(startups=[]),
        "is not measured of kept workers without a second epoch": run(persistent=True),
        "is not measured without the loop as it is": run(without(WELL, "baseline")),
        "does not apply without workers": run(workers=0),
    },
    "cores": {
        "passes": run(environment={"cores": 16, "threads": {"torch": 8}}),
        "fails for threads": crowded(STARVED, threads=4, cores=8),
        "fails without a thread to spare": crowded(STARVED, device="cpu"),
        "is open where other processes take the cores": crowded(
            STARVED, 0.8, 4, cores=8, cores_busy=8.0, cores_used=2.0
        ),
        "fails for want of cores": crowded(STARVED, queued=0.01),
        "passes where nobody is held up": crowded(WELL),
        "passes where threads do not wait": crowded(STARVED, queued=0.01, device="cpu"),
        "is not measured if their number is not known": run(environment={"python": "3.12"}),
        "is not measured if the waiting is not known": run(evidence={}),
        "is not measured without the loop as it is": run(without(WELL, "baseline")),
        "does not apply without workers": run(without(WELL, "worker"), workers=0),
    },
    "knobs": {
        "passes": run(),
        "fails": run(STARVED, **LATE),
        "fails as measured": tried(2.0),
        "passes as measured": tried(1.0),
        "passes where more workers would gain 4 % at most": limited(52.4, rounds=3),
        "is open where their gain is not certain": limited(54.0, rounds=2),
        "is not measured without cached batches": run({"baseline": 51.2}),
        "is not measured without the loop as it is": run(without(WELL, "baseline")),
    },
    "transfer": {
        "passes": run(),
        "passes though the loop waits, which costs nothing": run(leaves=[leaf(), leaf("[1]", non_blocking=False)]),
        "passes behind a slow loader, where less copying would gain nothing yet": run(
            {**COPYING, "raw": 300.0, "warm": 300.0, "baseline": 300.0, "supply": 299.0}, evidence={}
        ),
        "passes, made of the batch on the host": run(leaves=[leaf(copied=False)]),
        "passes, not watched": but(run(), batch__unwatched="parts of the script are compiled"),
        "passes, without a batch": but(run(), batch=None),
        "passes, seen by nobody": run(leaves=[leaf(copied=None, read=None)]),
        "fails": run(COPYING, leaves=[leaf(non_blocking=False)]),
        "does not apply on the CPU": on_cpu(),
        "is not measured without its rung": run(without(WELL, "host"), unavailable={"host": "too large"}),
        "is open after one round": run(rounds=1),
        "is open in noise": run(climbing(host=2.7), noise=0.03, rounds=3),
    },
    "syncs": {
        "passes": run(),
        "fails": but(
            run(),
            syncs=Syncs(
                16,
                [
                    SyncCall("item()", "train.py:40", "total += loss.item()", 1.0, 12.5, "Read it every N steps."),
                    SyncCall("a call into torch", "train.py:44", "x", 2.5, None, "See whether it is needed."),
                    SyncCall("tolist()", "train.py:47", "x", 0.5, None, "Less often."),
                ],
            ),
        ),
        "passes where they take too little to gain by": calling(1.0, 1.5),
        "fails where they take a little more": calling(1.0, 1.6),
        "passes where the device is busy all the same": calling(30.0, busy=0.97),
        "fails where the device is less busy": calling(30.0, busy=0.94),
        "is open where their cost is not known": calling(1.0, None),
        "fails where the known cost suffices": calling(30.0, None),
        "does not apply on the CPU": on_cpu(),
        "is not measured for want of time": but(run(), syncs=None),
        "is not measured elsewhere": but(run(), syncs=Syncs(unwatched="only CUDA reports calls that wait for it")),
        "is not measured without its rung": but(
            run(without(WELL, "host"), unavailable={"host": "too large"}), syncs=None
        ),
    },
    "bytes": {
        "passes where nothing was found, whatever copies cost": run(COPYING),
        "passes where there is little to gain": run(COPYING, leaves=[leaf(), leaf("[1]", nbytes=1 << 14, **BYTES)]),
        "passes where copies cost nothing": run(leaves=[leaf(**BYTES)]),
        "passes, as the padding of a batch is no item": run(COPYING, leaves=[leaf(padding=Padding(0.0, 0.5))]),
        "fails": run(COPYING, leaves=[leaf(**BYTES)]),
        "is open, and not called small, where the gain is too uncertain to be recommended": run(
            {**climbing(host=8.0), "supply": 25.0}, rounds=3, noise=0.1, leaves=[leaf(**BYTES)], seed=1
        ),
        "does not apply on the CPU": on_cpu(),
        "is not measured without a batch": run(leaves=None),
        "is not measured without cached batches": run({"baseline": 51.2}),
    },
    "unread": {
        "passes": run(leaves=[leaf(), leaf("[1]"), leaf("[2]", copied=False, read=None)]),
        "passes where it costs nothing": run(leaves=[leaf(), leaf("[1]", read=False), leaf("[2]", read=None)]),
        "fails": run(COPYING, leaves=[leaf(), leaf("['extra']", read=False)]),
        "is not measured if it is not known what copies cost": run(
            {"baseline": 51.2}, leaves=[leaf(), leaf("[1]", read=False)]
        ),
        "is not measured in compiled parts": but(run(), batch__unwatched="parts of the script are compiled"),
        "is not measured if no watched step showed it": run(leaves=[leaf(read=None)]),
        "is not measured without a batch": run(leaves=None),
        "does not apply where nothing is copied": run(leaves=[leaf(copied=False, read=None)]),
        "does not apply on the CPU": on_cpu(),
    },
}


def test_what_is_said_of_each_item() -> None:
    lines = []
    for id, runs in RUNS.items():
        for expected, session in runs.items():
            one = item(session, id)
            assert one.status == next(status for word, status in WORDS.items() if expected.startswith(word)), expected
            todo = [*(f"recommends {fix.id}" for fix in one.advice), *one.todo]
            lines += [f"{id} {expected}:", *(f"    {told}" for told in (f"{one.title}: {one.figures}", *todo)), ""]
    agrees(GOLDEN, "\n".join(lines))


def test_what_helps_most_comes_first() -> None:
    session = RUNS["starvation"]["fails, and what helps most comes first"]
    found = [one.id for one in diagnose_session(session).recommendations]
    assert len(found) > 3
    assert [one.id for one in item(session, "starvation").advice] == found[:3]


@pytest.mark.parametrize(("gate", "status"), [(0.05, FAILED), (0.6, OPEN), (0.7, PASSED)])
def test_the_gate(gate: float, status: str) -> None:
    """The loop loses 58 % to data; another run may find more than 60."""
    one = item(run(STARVED), "starvation", gate)
    assert (one.status, one.title) == (status, f"data costs at most {100 * gate:.0f} % of a step")


def test_what_was_measured_is_said_as_such() -> None:
    (one,) = item(tried(2.0), "knobs").advice
    assert one.measured is not None and one.measured.value == pytest.approx(2.0)


class TestRounds:
    def test_every_rung_gets_a_few_windows(self) -> None:
        assert next_round(make(WELL, rounds=1, noise=0.0), 0.05) == [*RUNGS, "supply"]

    def test_enough(self) -> None:
        assert next_round(run(rounds=3), 0.05) == []

    def test_no_cuts(self) -> None:
        """A diagnosis would go on and cut the chain."""
        session = run(STARVED, rounds=3, inside=inside(4.0, 4.0, load=2.0))
        assert next_round(session, 0.05) == []

    def test_an_open_cost(self) -> None:
        session = make({**climbing(baseline=2.0), "supply": 10.0}, rounds=5, noise=0.03)
        assert {"device", "baseline"} <= {*next_round(session, 0.05)}
        assert "baseline" not in next_round(session, 0.5)

    def test_open_copies(self) -> None:
        session = make({**climbing(host=3.0, raw=60.0), "supply": 10.0}, rounds=5, noise=0.04)
        assert next_round(session, 0.05) == ["device", "host"]

    def test_an_open_supply(self) -> None:
        session = make({**climbing(raw=60.0), "supply": 52.6}, rounds=5, noise=0.03)
        assert next_round(session, 0.05) == ["device", "supply"]

    def test_what_cannot_be_measured_is_not_asked_for(self) -> None:
        session = make(without(climbing(baseline=2.0), "host"), rounds=5, noise=0.03, unavailable={"host": "too large"})
        session.rungs["device"] = Rung("device", False, "the script failed on these batches")
        session.rungs[cut_rung(1)] = Rung(cut_rung(1), False, "not separable")
        session.rungs[settings_rung(1)] = Rung(settings_rung(1))
        assert next_round(session, 0.05) == []

    def test_nothing_measured_yet(self) -> None:
        assert next_round(Session(rungs={"baseline": Rung("baseline")}), 0.05) == ["baseline"]


class TestReports:
    def made(self) -> Audit:
        session = run(COPYING, leaves=[leaf(non_blocking=False), leaf("['a|b']", read=False)])
        session.syncs = Syncs(16, [SyncCall("item()", "train.py:40", "", 1.0, 12.5, "Read it every N steps.")])
        session.warn("writes-in-place", "the training loop changes its batches in place", "they are copied")
        return audit(diagnose_session(session))

    def test_colour(self) -> None:
        shown = text.write(blocks(self.made()), colour=True)
        assert "\x1b[31mFAILED        \x1b[0m  data costs" in shown
        assert "\x1b[32mpassed        \x1b[0m  epochs begin" in shown

    def test_what_does_not_apply(self) -> None:
        assert "does not apply  what is copied to the device is read there" in RENDERERS[".txt"](
            audit(diagnose_session(on_cpu()))
        )

    def test_json_is_a_report_with_a_checklist(self, tmp_path: Path) -> None:
        made = self.made()
        for ending in DOCUMENTS:
            write(made, str(tmp_path / f"a{ending}"))
        saved = json.loads((tmp_path / "a.json").read_text())
        assert [one["id"] for one in saved["audit"]["items"]] == ITEMS
        assert saved["audit"]["gate"] == 0.05
        assert saved["audit"]["items"][0] == {
            "id": "starvation",
            "title": "data costs at most 5 % of a step",
            "status": "failed",
            "told": made.items[0].figures,
            "recommendations": ["overlap-copies", "pin-memory", "unread"],
            "todo": [],
        }
        again = audit(read(str(tmp_path / "a.json")))
        assert again.to_dict() == made.to_dict()


def test_a_checklist_of_a_run_with_nothing() -> None:
    found = {one.id: one.status for one in audit(diagnose_session(Session())).items}
    without_workers = dict.fromkeys(("supply", "startup", "cores"), DOES_NOT_APPLY)
    on_the_cpu = dict.fromkeys(("transfer", "syncs", "bytes", "unread"), DOES_NOT_APPLY)
    assert found == {"starvation": NOT_MEASURED, "knobs": NOT_MEASURED, **without_workers, **on_the_cpu}


class TestCommand:
    def test_passed(self, main: Main, script: Path, analyzed: Callable[[Session], list[Request]]) -> None:
        requests = analyzed(run())
        code, out, err = main("audit", "-v", script, "--epochs", "3", "-o", "x")
        assert (code, err) == (0, "")
        assert out.startswith("THE AUDIT PASSED: 0 of 9 checks failed, 9 passed\n")
        (request,) = requests
        assert (request.budget, request.audit, request.rungs, request.knobs) == (60.0, 0.05, None, True)
        assert request.target.argv == [str(script), "--epochs", "3", "-o", "x"]

    def test_headline_and_exit_code_agree(
        self,
        main: Main,
        script: Path,
        analyzed: Callable[[Session], list[Request]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Whatever the items say: 3 for an audit that failed, 0 for one that passed or that is inconclusive."""
        analyzed(run())
        module, passed = sys.modules["pipediag.commands.analyze"], audit(diagnose_session(run()))
        assert {one.status for one in passed.items} == {PASSED}
        for statuses in itertools.product(STATUSES, repeat=3):
            given = dict(zip(("starvation", "startup", "syncs"), statuses, strict=True))
            made = replace(passed, items=[replace(one, status=given.get(one.id, PASSED)) for one in passed.items])
            monkeypatch.setattr(module, "run_checklist", lambda diagnosis, gate, made=made: made)
            code, out, err = main("audit", script)
            if FAILED in statuses:
                expected = 3, "THE AUDIT FAILED: "
            elif statuses[0] == PASSED:
                expected = 0, "THE AUDIT PASSED: "
            else:
                expected = 0, "THE AUDIT IS INCONCLUSIVE: "
            assert (code, out[: len(expected[1])]) == expected, statuses
            assert ("not met: " in err) is (code == 3)
            assert f" {len([one for one in made.items if one.status == FAILED])} of 9 checks failed" in out

    @pytest.mark.parametrize(("options", "expected"), [([], 3), (["--fail-over", "52"], 3), (["--fail-over", "65"], 0)])
    def test_gate(
        self,
        main: Main,
        script: Path,
        analyzed: Callable[[Session], list[Request]],
        options: list[str],
        expected: int,
    ) -> None:
        analyzed(run(STARVED))
        code, _, err = main("audit", *options, script)
        assert code == expected
        assert ("not met: data costs at most" in err) == (code == 3)

    def test_the_gate_wants_certainty(
        self, main: Main, script: Path, analyzed: Callable[[Session], list[Request]]
    ) -> None:
        analyzed(run(climbing(baseline=4.0), rounds=1))
        assert main("audit", script)[0] == 0

    def test_it_has_not_passed_while_it_is_open_whether_the_loop_starves(
        self, main: Main, script: Path, analyzed: Callable[[Session], list[Request]]
    ) -> None:
        analyzed(run({"device": 50.0}))
        code, out, _ = main("audit", script)
        assert code == 0
        assert out.startswith("THE AUDIT IS INCONCLUSIVE: 0 of 9 checks failed")

    def test_reports(
        self, main: Main, script: Path, tmp_path: Path, analyzed: Callable[[Session], list[Request]]
    ) -> None:
        analyzed(run())
        written = [tmp_path / "a.md", tmp_path / "a.json"]
        assert main("audit", "-o", written[0], "-o", written[1], script)[0] == 0
        assert written[0].read_text().startswith("# THE AUDIT PASSED: 0 of 9")
        assert json.loads(written[1].read_text())["audit"]["items"]

    @pytest.mark.parametrize("options", [["-o", "x.pdf"], ["--budget", "0"], ["--fail-over", "101"], ["--bogus"]])
    def test_usage(self, main: Main, script: Path, options: list[str]) -> None:
        code, out, err = main("audit", *options, script)
        assert (code, out) == (2, "")
        assert options[0] in err

    def test_interrupted(self, main: Main, script: Path, analyzed: Callable[[Session], list[Request]]) -> None:
        analyzed(replace(run(STARVED), ended="interrupted"))
        code, out, _ = main("audit", "-v", script)
        assert code == 130 and out.startswith("THE AUDIT")
        analyzed(Session(ended="interrupted"))
        assert main("audit", script)[:2] == (130, "")
