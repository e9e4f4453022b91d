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
    Window,
    cut_rung,
    settings_rung,
)

from ..conftest import Main
from ..made import DOCUMENTS, climbing, inside, leaf, make, without

ITEMS = ["starvation", "supply", "startup", "cores", "knobs", "transfer", "syncs", "bytes", "unread"]
#: 50 ms of compute, which nothing holds up; the loader alone makes a batch every 25 ms.
WELL = {**climbing(), "supply": 25.0}
#: The workers give a batch every 120 ms.
STARVED = {**WELL, "raw": 120.0, "warm": 120.0, "baseline": 120.0, "supply": 118.0}
#: A loop that is limited by copying, 20 of 71 ms.
COPYING = {**climbing(host=20.0), "supply": 25.0}
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


def advised(one: Item) -> list[str]:
    return [recommendation.id for recommendation in one.advice]


class TestStarvation:
    def test_passed(self) -> None:
        one = item(run(), "starvation")
        assert (one.status, one.title) == (PASSED, "data costs at most 5 % of a step")
        assert one.figures == "2 % (2 to 3 %): 51.2 ms with the loader, 50 with cached batches"

    def test_failed(self) -> None:
        session = run(STARVED, inside=inside(4.0, 4.0, load=2.0), evidence={"baseline": {**SEEN, "worker_ms": 400.0}})
        one = item(session, "starvation")
        assert one.status == FAILED
        assert one.figures.startswith("58 % (52 to 64 %): 120 ms with the loader")
        assert advised(one) == ["num-workers", "rewrite", "rewrite"]

    def test_what_helps_most_comes_first(self) -> None:
        session = run(COPYING, leaves=[leaf(non_blocking=False, **TestBytes.BYTES), leaf("[1]", read=False)])
        found = [one.id for one in diagnose_session(session).recommendations]
        assert len(found) > 3
        assert advised(item(session, "starvation")) == found[:3]

    def test_failed_and_nothing_known_that_helps(self) -> None:
        """Then there is something to do about the costliest stage in general."""
        one = item(run(STARVED, evidence={}, workers=0), "starvation")
        assert one.status == FAILED
        assert advised(one) == ["stage"] and one.todo == []

    def test_its_gate(self) -> None:
        assert item(run(STARVED), "starvation", 0.7).status == PASSED
        assert item(run(STARVED), "starvation", 0.7).title == "data costs at most 70 % of a step"
        assert item(run(STARVED), "starvation", 0.6).status == OPEN, "another run may find more"


class TestSupply:
    def test_passed(self) -> None:
        one = item(run(), "supply")
        assert one.status == PASSED
        assert one.figures == "the loader supplies 2x what training consumes: 40 against 20 batches/s"

    def test_failed(self) -> None:
        one = item(run(STARVED, inside=inside(4.0, 4.0, load=2.0)), "supply")
        assert one.status == FAILED
        assert one.figures.startswith("the loader supplies 0.424x what training consumes")
        assert advised(one) == ["num-workers", "rewrite", "rewrite"]

    def test_failed_and_nothing_known_that_helps(self) -> None:
        assert advised(item(run(STARVED, evidence={}), "supply")) == ["stage"]


class TestStartup:
    def test_passed(self) -> None:
        one = item(run(), "startup")
        assert one.status == PASSED
        assert one.figures == (
            "an epoch's start takes 0.5 s, 0.5 ms a step over an epoch of 1000 batches: 1 % of the time (0 to 1 %)"
        )

    def test_failed(self) -> None:
        one = item(run(length=100, startups=[Startup(0.9, ready=0.5), *[Startup(0.7, ready=0.6)] * 2]), "startup")
        assert one.status == FAILED
        assert one.figures.startswith("an epoch's start takes 0.7 s, 7 ms a step over an epoch of 100 batches")
        assert advised(one) == ["persistent-workers"]

    def test_failed_although_the_workers_are_kept(self) -> None:
        startups = [Startup(5.0), *[Startup(0.6, renewed=True)] * 2]
        one = item(run(length=100, startups=startups, persistent=True), "startup")
        assert (one.status, one.todo) == (FAILED, ["longer epochs, or a cheaper first batch"])
        assert one.figures.startswith("an epoch's start takes 0.6 s")

    def test_open_if_it_was_seen_once(self) -> None:
        one = item(run(length=100, startups=[Startup(0.9, ready=0.5)]), "startup")
        assert (one.status, advised(one)) == (OPEN, [])
        assert "(0 to 15 %); too uncertain to tell" in one.figures


class TestCores:
    def test_passed(self) -> None:
        one = item(run(environment={"cores": 16, "threads": {"torch": 8}}), "cores")
        assert one.status == PASSED
        assert one.figures == (
            "4 workers with 1 thread each and the training process with 8 threads share 16 cores; a worker waits for a "
            "core 1 % of its time"
        )

    def crowded(self, ladder: Mapping[str, float], queued: float = 0.4, threads: int = 4, cores: float = 8) -> Session:
        return run(
            ladder,
            inside=inside(4.0, 4.0, load=2.0, threads={"torch": threads}),
            evidence={"baseline": {**SEEN, "worker_ms": 400.0, "worker_queued": queued}},
            environment={"cores": cores},
        )

    def test_failed(self) -> None:
        one = item(self.crowded(STARVED), "cores")
        assert one.status == FAILED
        assert one.figures.startswith(
            "4 workers with 4 torch threads each and the training process with 1 thread share 8 cores; a worker"
        )
        assert "threads" in advised(one)

    def test_failed_and_no_thread_to_spare(self) -> None:
        one = item(replace(self.crowded(STARVED, threads=1, cores=4), device={"type": "cpu"}), "cores")
        assert (one.status, one.todo) == (
            FAILED,
            ["give the workers less to do, or each device more cores"],
        )

    def test_what_holds_nobody_up_is_well(self) -> None:
        assert item(self.crowded(WELL, threads=1, cores=4), "cores").status == PASSED

    def test_threads_that_do_not_wait_are_well(self) -> None:
        session = replace(self.crowded(STARVED, queued=0.01, threads=1, cores=4), device={"type": "cpu"})
        assert item(session, "cores").status == PASSED

    def test_failed_for_want_of_cores(self) -> None:
        one = item(self.crowded(STARVED, queued=0.01, threads=1, cores=4), "cores")
        assert (one.status, advised(one)) == (FAILED, ["more-cores"])


class TestKnobs:
    def test_passed(self) -> None:
        one = item(run(), "knobs")
        assert one.status == PASSED
        assert one.figures == "num_workers=4, prefetch_factor=None, pin_memory=False, persistent_workers=False"

    def test_failed(self) -> None:
        session = run(STARVED, inside=inside(4.0, 4.0, load=2.0), evidence={"baseline": {**SEEN, "worker_ms": 400.0}})
        one = item(session, "knobs")
        assert one.status == FAILED
        assert advised(one) == ["num-workers"]

    def tried(self, faster: float) -> Session:
        """Eight rounds of the unmodified loader and of one with twice as many workers."""
        session = run(STARVED)
        session.knobs = Knobs([LoaderSettings(8)])
        session.rungs[settings_rung(1)] = Rung(settings_rung(1))
        for round_ in range(10, 18):
            session.windows.append(Window("baseline", round_, 100, 12.0))
            session.windows.append(Window(settings_rung(1), round_, 100, 12.0 / faster))
        return session

    def test_measured_to_pay(self) -> None:
        one = item(self.tried(2.0), "knobs")
        assert (one.status, advised(one)) == (FAILED, ["num-workers"])
        assert one.figures.endswith("; 1 other setting measured")
        assert one.advice[0].measured is not None and one.advice[0].measured.value == pytest.approx(2.0)

    def test_measured_not_to_pay(self) -> None:
        assert item(self.tried(1.0), "knobs").status == PASSED

    def test_a_gain_below_the_gate_is_no_failure(self) -> None:
        """More workers would gain 1.04x at most: that is not recommended, and no reason to fail."""
        late = {**WELL, "raw": 52.4, "warm": 52.4, "baseline": 52.4, "supply": 52.3}
        seen = {"baseline": {**SEEN, "worker_ms": 209.6}}
        one = item(run(late, rounds=3, noise=0.01, inside=inside(4.0, 4.0, load=2.0), evidence=seen), "knobs")
        assert one.status == PASSED
        assert "num_workers=4" in one.figures and "instead of" not in one.figures

    def test_a_gain_that_is_not_certain_is_open(self) -> None:
        late = {**WELL, "raw": 54.0, "warm": 54.0, "baseline": 54.0, "supply": 53.0}
        seen = {"baseline": {**SEEN, "worker_ms": 216.0}}
        one = item(run(late, rounds=2, noise=0.01, inside=inside(4.0, 4.0, load=2.0), evidence=seen), "knobs")
        assert one.status == OPEN

    @pytest.mark.parametrize("session", [run({"baseline": 51.2}), run(without(WELL, "baseline"))])
    def test_not_measured(self, session: Session) -> None:
        assert item(session, "knobs").status == NOT_MEASURED


class TestTransfer:
    def test_passed(self) -> None:
        one = item(run(), "transfer")
        assert one.status == PASSED
        assert one.figures == "0 % of 51.2 ms; from pinned memory, without waiting"

    def test_waiting_costs_nothing(self) -> None:
        one = item(run(leaves=[leaf(), leaf("[1]", non_blocking=False)]), "transfer")
        assert one.status == PASSED
        assert one.figures.endswith("; the loop waits for the copy of batch[1]")

    def test_failed(self) -> None:
        one = item(run(COPYING, leaves=[leaf(non_blocking=False)]), "transfer")
        assert one.status == FAILED
        assert one.figures == "28 % of 71 ms; the loop waits for the copy of batch[0]"
        assert advised(one) == ["overlap-copies", "pin-memory"]

    def test_behind_a_slow_loader(self) -> None:
        """Copies cost something on the ladder, but removing that cost would gain nothing yet."""
        ladder = {**COPYING, "raw": 300.0, "warm": 300.0, "baseline": 300.0, "supply": 299.0}
        one = item(run(ladder, evidence={}), "transfer")
        assert one.status == PASSED
        assert one.figures.startswith("7 % of 300 ms; ")
        assert one.figures.endswith("; without them the loop would be 1x as fast")

    def test_not_watched(self) -> None:
        session = run()
        session.batch.unwatched = "parts of the script are compiled"
        assert item(session, "transfer").figures.endswith(
            "; how the loop copies was not observed: parts of the script are compiled"
        )
        session.batch = None
        assert item(session, "transfer").figures.endswith("; how the loop copies was not observed")
        session = run(leaves=[leaf(copied=None, read=None)])
        assert item(session, "transfer").figures.endswith("; how the loop copies was not observed")

    def test_made_of_the_batch_on_the_host(self) -> None:
        assert item(run(leaves=[leaf(copied=False)]), "transfer").figures.endswith(
            "; no tensor of a batch was copied unchanged"
        )


class TestSyncs:
    def test_passed(self) -> None:
        one = item(run(), "syncs")
        assert (one.status, one.figures) == (PASSED, "none in 16 steps watched")

    def test_failed(self) -> None:
        session = run()
        session.syncs = Syncs(
            16,
            [
                SyncCall("item()", "train.py:40", "total += loss.item()", 1.0, 12.5, "Read it every N steps."),
                SyncCall("a call into torch", "train.py:44", "x", 2.5, None, "See whether it is needed."),
                SyncCall("tolist()", "train.py:47", "x", 0.5, None, "Less often."),
            ],
        )
        one = item(session, "syncs")
        assert (one.status, one.figures) == (FAILED, "3 calls of the loop; 16 steps watched")
        assert one.todo == [
            "item() at train.py:40 (once a step, 12.5 ms): Read it every N steps.",
            "a call into torch at train.py:44 (2.5 times a step): See whether it is needed.",
            "tolist() at train.py:47 (0.5 times a step): Less often.",
        ]

    def calls(self, *ms: float | None, busy: float = 0.5) -> Item:
        """Calls that take these milliseconds of a step of 51.2 ms, on a device that is ``busy`` with cached batches."""
        session = run(evidence={"baseline": SEEN, "device": {"gpu_utilization": busy}})
        session.syncs = Syncs(
            16, [SyncCall("item()", "train.py:40", "x", 1.0, one, "Read it less often.") for one in ms]
        )
        return item(session, "syncs")

    def test_what_takes_too_little_to_gain_by_passes(self) -> None:
        one = self.calls(1.0, 1.5)
        assert (one.status, one.figures) == (PASSED, "2 calls of the loop; 16 steps watched; they take 2.5 of 51.2 ms")
        assert self.calls(1.0, 1.6).status == FAILED

    def test_a_device_that_is_busy_all_the_same_gains_nothing(self) -> None:
        one = self.calls(30.0, busy=0.97)
        assert one.status == PASSED
        assert one.figures.endswith("; fed from a cache the device works 97 % of the time")
        assert self.calls(30.0, busy=0.94).status == FAILED

    def test_a_cost_that_is_not_known_is_no_failure(self) -> None:
        one = self.calls(1.0, None)
        assert (one.status, len(one.todo)) == (OPEN, 2)
        assert one.figures.endswith("; how long they take is not known")
        assert self.calls(30.0, None).status == FAILED

    def test_not_measured(self) -> None:
        one = item(on_cpu(), "syncs")
        assert one.figures == "training runs on the CPU: there is no device to wait for"
        assert one.status == DOES_NOT_APPLY
        session = run()
        session.syncs = None
        assert item(session, "syncs").figures == "time ran out before steps were watched"
        session.syncs = Syncs(unwatched="only CUDA reports calls that wait for it, and training runs on mps")
        one = item(session, "syncs")
        assert (one.status, one.figures) == (NOT_MEASURED, session.syncs.unwatched)
        session = run(without(WELL, "host"), unavailable={"host": "too large"})
        session.syncs = None
        assert item(session, "syncs").figures == "host was not measured: too large"


class TestBytes:
    BYTES: Mapping[str, Any] = {"levels": 256, "bytes_over_255": True, "low": 0.0, "high": 1.0}

    def test_nothing_was_found(self) -> None:
        """Copies cost 28 % of the step: what other bytes would gain is not known."""
        one = item(run(COPYING), "bytes")
        assert (one.status, one.figures) == (PASSED, "a batch has 1.05 MB in 1 tensor; no redundant bytes were found")

    def test_little_to_gain(self) -> None:
        one = item(run(COPYING, leaves=[leaf(), leaf("[1]", nbytes=1 << 14, **self.BYTES)]), "bytes")
        assert (one.status, one.figures) == (
            PASSED, "a batch has 1.06 MB in 2 tensors; fewer would gain less than 5 % of a step"
        )  # fmt: skip

    def test_a_gain_that_is_too_uncertain_to_be_recommended_is_not_called_small(self) -> None:
        session = run({**climbing(host=8.0), "supply": 25.0}, rounds=3, noise=0.1, leaves=[leaf(**self.BYTES)], seed=1)
        assert "uint8" not in {one.id for one in diagnose_session(session).recommendations}
        one = item(session, "bytes")
        assert one.status == OPEN and "Send batch[0] as uint8" in one.figures, one

    def test_failed(self) -> None:
        one = item(run(COPYING, leaves=[leaf(**self.BYTES)]), "bytes")
        assert one.status == FAILED
        assert advised(one) == ["uint8"]
        assert one.figures.endswith("; batch[0] (float32, 64x4096, 1.05 MB) holds bytes divided by 255")

    def test_bytes_that_cost_nothing_are_well(self) -> None:
        assert item(run(leaves=[leaf(**self.BYTES)]), "bytes").status == PASSED


class TestUnread:
    def test_passed(self) -> None:
        one = item(run(leaves=[leaf(), leaf("[1]"), leaf("[2]", copied=False, read=None)]), "unread")
        assert (one.status, one.figures) == (PASSED, "2 of 2 copied tensors were seen to be read")

    def test_failed(self) -> None:
        one = item(run(COPYING, leaves=[leaf(), leaf("['extra']", read=False)]), "unread")
        assert one.status == FAILED
        assert one.figures.startswith("batch['extra'] (float32, 64x4096, 1.05 MB) is copied to the device and freed")
        assert advised(one) == ["unread"]

    def test_what_costs_nothing_is_well(self) -> None:
        one = item(run(leaves=[leaf(), leaf("[1]", read=False), leaf("[2]", read=None)]), "unread")
        assert one.status == PASSED
        assert one.figures == (
            "1 of 3 copied tensors were seen to be read; leaving batch[1] on the host would gain less "
            "than 5 % of a step"
        )

    def test_what_its_copies_cost_is_not_known(self) -> None:
        one = item(run({"baseline": 51.2}, leaves=[leaf(), leaf("[1]", read=False)]), "unread")
        assert (one.status, one.figures) == (
            NOT_MEASURED, "device was not measured: not reached; give a longer budget"
        )  # fmt: skip

    def test_compiled(self) -> None:
        session = run()
        session.batch.unwatched = "parts of the script are compiled"
        one = item(session, "unread")
        assert (one.status, one.figures) == (NOT_MEASURED, "parts of the script are compiled")

    def test_nothing_is_copied(self) -> None:
        assert item(run(leaves=[leaf(copied=False, read=None)]), "unread").status == DOES_NOT_APPLY


#: Runs that leave an item unanswered: with what status, and why.
UNANSWERED: dict[str, list[tuple[Session, str, str]]] = {
    "starvation": [
        (run(without(WELL, "baseline")), NOT_MEASURED, "Too little is known"),
        (run(rounds=1), OPEN, "too uncertain to tell"),
        (run(climbing(baseline=2.0), noise=0.03), OPEN, "too uncertain to tell"),
    ],
    "supply": [
        (run(without(WELL, "supply")), NOT_MEASURED, "supply was not measured: not reached; give a longer budget"),
        (
            run(without(WELL, "worker"), workers=0),
            DOES_NOT_APPLY,
            "num_workers=0: the training process makes the batches between",
        ),
        (run({name: WELL[name] for name in ("baseline", "supply")}), NOT_MEASURED, "device was not measured"),
        (run({**STARVED, "supply": 53.0}, noise=0.05), OPEN, "too uncertain to tell"),
        (run({**STARVED, "supply": 49.0}, rounds=1), OPEN, "too uncertain to tell"),
    ],
    "startup": [
        (run(length=None), NOT_MEASURED, "the loader has no length"),
        (run(startups=[]), NOT_MEASURED, "the script began no epoch"),
        (run(persistent=True), NOT_MEASURED, "the workers persist, and the script began no second epoch"),
        (run(without(WELL, "baseline")), NOT_MEASURED, "baseline was not measured"),
        (run(workers=0), DOES_NOT_APPLY, "num_workers=0: the training process makes the batches between its steps"),
    ],
    "cores": [
        (run(environment={"python": "3.12"}), NOT_MEASURED, "the number of usable cores is not known"),
        (run(evidence={}), NOT_MEASURED, "how long the workers wait"),
        (run(without(WELL, "worker"), workers=0), DOES_NOT_APPLY, "num_workers=0"),
        (run(without(WELL, "baseline")), NOT_MEASURED, "baseline was not measured"),
    ],
    "transfer": [
        (on_cpu(), DOES_NOT_APPLY, "training runs on the CPU: there is no transfer"),
        (
            run(without(WELL, "host"), unavailable={"host": "too large"}),
            NOT_MEASURED,
            "host was not measured: too large",
        ),
        (run(rounds=1), OPEN, "too uncertain to tell"),
        (run(climbing(host=2.7), noise=0.03, rounds=3), OPEN, "too uncertain to tell"),
    ],
    "bytes": [
        (on_cpu(), DOES_NOT_APPLY, "training runs on the CPU"),
        (run(leaves=None), NOT_MEASURED, "the contents of a batch were not inspected"),
        (run({"baseline": 51.2}), NOT_MEASURED, "device was not measured: not reached"),
    ],
    "unread": [
        (on_cpu(), DOES_NOT_APPLY, "training runs on the CPU"),
        (run(leaves=[leaf(read=None)]), NOT_MEASURED, "no watched step showed"),
        (run(leaves=None), NOT_MEASURED, "no watched step showed"),
    ],
}


@pytest.mark.parametrize(
    ("id", "session", "status", "told"), [(id, *run) for id, runs in UNANSWERED.items() for run in runs]
)
def test_unanswered(id: str, session: Session, status: str, told: str) -> None:
    one = item(session, id)
    assert one.status == status
    assert told in one.figures


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


def test_the_padding_of_a_batch_is_no_item() -> None:
    assert item(run(COPYING, leaves=[leaf(padding=Padding(0.0, 0.5))]), "bytes").status == PASSED


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
