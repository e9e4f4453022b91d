"""The waterfall sums to the baseline, also if rungs are missing; the two sides of a step; the loop without a stage."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.diagnosis import Stage
from pipediag.analysis.numbers.intervals import exactly
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.numbers.loop_and_workers import sides
from pipediag.analysis.waterfall import by_stage
from pipediag.analysis.whatif import Change, what_if
from pipediag.report import RENDERERS
from pipediag.session import RUNGS, STAGE_OF_RUNG, Account, Cost, HotLine, Inside, Part, Place, Rung, Session, Window

from ..golden import agrees
from ..made import blocks, but, climbing, cut, inside, lacking, make, views, waits, without

LADDERS = st.dictionaries(st.sampled_from(RUNGS), st.floats(0.01, 5000), min_size=1, max_size=7)


def pieces(session: Session) -> dict[str, Stage]:
    """Return the pieces by stage; each stage has one piece."""
    found = diagnose_session(session).waterfall
    assert len({piece.stage for piece in found}) == len(found)
    return {piece.stage: piece for piece in found}


@given(LADDERS, st.integers(1, 4), st.floats(0, 0.3), st.integers())
def test_sums_to_the_baseline(ladder: dict[str, float], rounds: int, noise: float, seed: int) -> None:
    session = make(ladder | {"baseline": 200.0}, rounds=rounds, noise=noise, seed=seed)
    sums_up(session)
    covered = [stage for piece in diagnose_session(session).waterfall for stage in piece.covers]
    if len(ladder | {"baseline": 1}) > 1:
        assert covered == list(STAGE_OF_RUNG.values())


def sums_up(session: Session) -> None:
    """Check that no piece is negative, that each lies in its interval, and that they sum to the step."""
    found = diagnose_session(session).waterfall
    base = LadderView(session).ms("baseline").value
    assert math.fsum(piece.ms.value for piece in found) == pytest.approx(base, rel=1e-9)
    assert math.fsum(piece.share for piece in found) == pytest.approx(1.0)
    for piece in found:
        slack = 1e-9 * base
        assert -slack <= piece.ms.value <= base + slack
        assert piece.ms.low - slack <= piece.ms.value <= piece.ms.high + slack
        assert piece.ms.low >= -slack
        assert all(map(math.isfinite, (piece.ms.low, piece.ms.high)))
    for piece in found[1:]:
        assert piece.without.steps_per_s > 0


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Any measurement of a loop: rungs in any order, waiting, and the workers' time."""
    ms, share = st.floats(0.01, 5000), st.floats(0, 1)
    ladder = draw(LADDERS)
    evidence: dict[str, dict[str, float]] = {}
    for rung in ladder:
        seen = evidence.setdefault(rung, {})
        if draw(st.booleans()):
            seen["wait_ms"] = draw(share) * ladder[rung]
        if draw(st.booleans()):
            seen |= {"worker_ms": draw(ms), "worker_cpu": 0.9, "worker_queued": 0.05, "worker_blocked": 0.05}
            if draw(st.booleans()):
                seen["collate_ms"] = draw(share) * seen["worker_ms"]
    chain = draw(st.lists(st.floats(0, 50), max_size=4))
    return make(
        ladder,
        rounds=draw(st.integers(1, 2)),
        noise=draw(st.floats(0, 0.3)),
        seed=draw(st.integers()),
        workers=draw(st.sampled_from([0, 1, 8])),
        evidence=evidence,
        inside=inside(*chain, load=draw(st.floats(0, 50)), between=draw(st.floats(0, 5)))
        if draw(st.booleans())
        else None,
        observed=blocks(draw(st.integers(0, 3)), 100.0, 100 * draw(share), draw(st.floats(0, 500)), noise=0.2),
        device=draw(st.sampled_from(["cpu", "cuda"])),
    )


@given(sessions())
def test_any_session_sums_up(session: Session) -> None:
    diagnosis = diagnose_session(session)
    if diagnosis.waterfall:
        sums_up(session)
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert RENDERERS[".txt"](diagnosis)


def told(piece: Stage) -> str:
    """Return a piece of a step as a line of a book."""
    covers = f" with {', '.join(piece.others)}" if piece.others else ""
    links = f" [{', '.join(piece.links)}]" if piece.links else ""
    where = f" at {piece.culprit.name} {piece.culprit.where}" if piece.culprit is not None else ""
    cost, low, high, share = (round(one, 4) for one in (piece.ms.value, piece.ms.low, piece.ms.high, piece.share))
    ms = f"{cost:.4g} ms ({low:.3g} to {high:.3g}), {100 * share:.3g} %"
    without = ""
    if piece.without is not None:
        without = f", without {'' if piece.without.measured else '~'}{piece.without.steps_per_s:.4g} steps/s"
    return f"    {piece.stage}{covers}{links}{where}: {ms}{without}"


#: A loop that waits 45 ms of 100.
LADDER = {"device": 50.0, "host": 52.0, "worker": 55.0, "baseline": 100.0}
#: The same of 120 ms: 67 for four workers, and its own side takes 53.
LATE = {"device": 50.0, "host": 52.0, "worker": 53.0, "baseline": 120.0}
#: A step of 90 ms waits 10 ms; its own side needs 50 ms with batches ready.
ALONE = dict.fromkeys(("device", "host", "worker"), 50.0) | {"baseline": 90.0}


def exact(ladder: dict[str, float], **more: Any) -> Session:
    return make(ladder, noise=0.0, **more)


def divided(found: Inside, collate_ms: float | None = 0.0, **more: Any) -> Session:
    """A loop that waits 45 ms for workers, whose 80 ms for a batch are divided as in a sample."""
    own = {} if collate_ms is None else {"collate_ms": collate_ms}
    ladder, seen = more.pop("ladder", {}), more.pop("seen", {})
    evidence = {**waits(45.0, worker_ms=80.0, **own), **seen}
    return exact({**LADDER, **ladder}, evidence=evidence, inside=found, **more)


def dead_worker(batch: float, *lines: HotLine) -> Session:
    """It did not live to report its collating: the samples take 14 ms each."""
    found = but(inside(1.0, 3.0, load=10.0), lines=[*lines])
    return exact(LADDER, evidence=waits(45.0, worker_ms=14.0 * batch), inside=found)


OWN = HotLine("data.py:9", "stack(x)", 1.0, "stack", "collate", "collate")
PARTS = [Part("Blur", "aug.py:25", cost=Cost(2.7)), Part("Noise", cost=Cost(0.3))]


def without_rungs(*missing: str, **costs: float) -> Session:
    return exact(without(climbing(**costs), *missing))


def few_bytes(megabytes: int) -> Session:
    """30 ms beyond the wait may be those of moving many bytes, or an unknown number, but not of few."""
    session = exact({"device": 50.0, "baseline": 100.0}, evidence=waits(20.0))
    return but(session, loader__batch_bytes=megabytes * 10**6)


def chained(*costs: float, cuts: tuple[int, ...] = (), workers: tuple[float, ...] = (), **more: Any) -> Session:
    """A chain cut at these places (by default everywhere), and its links' cost in the workers."""
    return exact(cut(climbing(raw=sum(costs)), costs, *cuts), inside=inside(*(workers or costs)), **more)


def late(cores: int = 16) -> Session:
    seen = waits(67.0, worker_ms=460.0, worker_cpu=1.0, collate_ms=46.0, process_cpu=0.25)
    seen["worker"] = {"process_cpu": 30 / 53}
    return exact(LATE, evidence=seen, inside=inside(1.0, 5.0, load=3.0), environment={"cores": cores})


def copied(workers: int, ms: float = 10.0) -> Session:
    """Copies of raw samples are not the transforms: workers make them side by side."""
    ladder = {"device": 40.0, "sample": 50.0, "raw": 90.0, "baseline": 95.0}
    return exact(ladder, workers=workers, evidence={"raw": {"copy_ms": ms}})


#: Milliseconds of the sampler in a step whose own work takes 20 ms.
SAMPLER = 30.0


def with_sampler(*missing: str, workers: int = 2) -> Session:
    """A loop whose batches are ready, but which waits in ``next()`` for its sampler."""
    rungs = dict.fromkeys(("device", "host"), 20.0) | dict.fromkeys(("worker", "sample", "raw", "baseline"), 50.0)
    seen = waits(SAMPLER, SAMPLER, worker_ms=2.0, collate_ms=0.5, sampler_ms=SAMPLER)
    seen["worker"]["sampler_ms"] = SAMPLER
    absent = ("host", "worker") if not workers else ()
    more: dict[str, Any] = {"absent": absent, "device": "cpu", "environment": {"cores": 2}}
    session = make(
        without(rungs, *missing, *absent), workers=workers, noise=0.0005, evidence=seen,
        inside=inside(0.01, load=0.04), **more,
    )  # fmt: skip
    return but(session, loader__sampler=Place("Balanced", "train.py:20"))


def sampler_beside_late_workers() -> Session:
    """Of 60 ms of waiting the sampler takes half."""
    seen = waits(60.0, 30.0, worker_ms=400.0, collate_ms=0.0, sampler_ms=30.0)
    return make({**climbing(worker=30.0), "baseline": 110.0}, noise=0.0005, evidence=seen)


def alone(supply: float | None = None) -> Session:
    return exact({**ALONE, **({} if supply is None else {"supply": supply})}, evidence=waits(10.0))


def pinning(
    *missing: str, pinned: bool = True, device: str = "cuda", megabytes: int = 0, queue: float = 5.0
) -> Session:
    """A step of 90 ms waits 10 ms; its thread is blocked 22 ms longer than with ready batches, and queues 5 ms."""
    rungs = dict.fromkeys(("device", "host", "worker"), 50.0) | {"baseline": 85.0 + queue}
    accounts = dict.fromkeys(LATE, Account(cpu_ms=30.0, other_ms=20.0)) | {
        "baseline": Account(cpu_ms=33.0, queue_ms=queue, waits_ms=10.0, other_ms=42.0)
    }
    seen = waits(10.0, worker_ms=200.0, worker_cpu=1.0)
    session = exact(without(rungs, *missing), evidence=seen, accounts=accounts, device=device)
    return but(session, loader__pin_memory=pinned, loader__batch_bytes=megabytes * 10**6)


#: Sessions whose steps golden/waterfall.txt shows.
STEPS: dict[str, Session] = {
    "the whole ladder": exact(climbing(host=3.0, worker=4.0, sample=5.0, raw=20.0, warm=10.0, baseline=8.0)),
    "a rung measured at a slow time takes nothing from compute, nor from the workers": exact(
        {"device": 10.0, "host": 100.0, "worker": 11.0, "baseline": 100.0}
    ),
    # The wait for the workers is divided in proportion to their time.
    "10 of a worker's 80 ms are collating": divided(inside(1.0, 3.0, load=10.0), 10.0),
    "a batch that its samples explain": dead_worker(40.0, OWN),
    "a batch that its samples do not explain is collating, by a function of the user's": dead_worker(9000.0, OWN),
    "without such a function it is not": dead_worker(9000.0),
    "each of ten views is too small to be certain, but all calls at one place are one piece": divided(
        views(inside(0.4, 0.2, load=2.0), 10)
    ),
    "a wrapper is named by what it runs": divided(but(inside(1.0, 3.0, load=4.0), links__1__parts=PARTS)),
    "marginal costs of rungs do not move the shares": divided(
        inside(6.0, load=2.0), ladder={"sample": 55.0, "raw": 56.0, "warm": 99.0}
    ),
    "collating as under its rung in older sessions: 20 of 80 ms": divided(
        inside(load=2.0), None, ladder={"sample": 55.0},
        seen={"sample": {"worker_ms": 25.0, "worker_queued": 0.0, "copy_ms": 5.0}},
    ),
    "collating that is not known is with the loading": divided(inside(2.0, load=2.0), None),
    "the code between the links goes with them": divided(inside(6.0, load=1.0, between=1.0)),
    "storage is what workers take less on warm files; under raw it is gone too": divided(
        inside(2.0, load=6.0), ladder={"raw": 56.0, "warm": 60.0}, seen={"warm": {"worker_ms": 40.0}}
    ),
    "caches of the CPU are warm as well, and workers that storage holds up are blocked": exact(
        {**LADDER, "warm": 60.0}, inside=inside(2.0, load=6.0),
        evidence={
            **waits(45.0, worker_ms=80.0, collate_ms=0.0, worker_blocked=0.0), "warm": {"worker_ms": 40.0}
        },
    ),
    "windows that differ by chance are no storage": divided(
        inside(2.0, load=6.0), ladder={"warm": 98.0}, seen={"warm": {"worker_ms": 78.0}}
    ),
    "transfer and hand-off are not known, so contention is not": few_bytes(0),
    "what is left is not moving few bytes": few_bytes(1),
    "it may be moving many": few_bytes(50),
    # Rungs that are missing: what they add is charged to what comes after.
    "raw is missing": without_rungs("raw", raw=30.0, warm=5.0),
    "sample, raw and warm are missing": without_rungs("sample", "raw", "warm", raw=30.0),
    "only the ends": without_rungs(*RUNGS[1:-1], raw=30.0),
    "warm is missing": without_rungs("warm", baseline=30.0),
    "worker is missing": without_rungs("worker", sample=30.0),
    "device is missing": without_rungs("device", raw=30.0),
    "stages that do not exist are not covered": exact(
        without(climbing(raw=30.0), "host", "worker"), absent=["host", "worker"], workers=0, device="cpu"
    ),
    "copies that one process makes": copied(0),
    "copies of one worker": copied(1),
    "copies of four workers, side by side": copied(4),
    # Cuts of the chain.
    "each link by itself": chained(5.0, 20.0, 10.0),
    "ranges are named by their links": chained(5.0, 5.0, 10.0, 10.0, cuts=(2,)),
    "or by the link that takes nearly all of it": chained(10.0, 0.5, 10.0, 10.0, cuts=(2,)),
    "a chain that was not cut is the loader's transform": exact(climbing(raw=30.0), inside=inside(10.0, 20.0)),
    "unless it is nearly one link": exact(climbing(raw=30.0), inside=inside(1.0, 20.0)),
    "a chain of one link": exact(climbing(raw=30.0), inside=inside(10.0)),
    "nobody looked inside": exact(climbing(raw=30.0)),
    "raw and its cuts are missing: most of a sample goes into B": exact(
        without(climbing(raw=30.0), "raw"), inside=inside(10.0, 20.0), unavailable={"raw": "why"}
    ),
    "no link takes most of the time": exact(without(climbing(raw=30.0), "raw"), inside=inside(10.0, 10.0, load=5.0)),
    "a cut without raw: the rest of the chain cannot be told from loading": lacking(
        chained(5.0, 20.0, cuts=(1,)), "raw"
    ),
    "sample is missing before a cut": lacking(chained(5.0, 20.0, cuts=(1,)), "sample"),
    # The loop without a stage: the workers take less, down to the training process, which hides the others.
    "of 460 ms for a batch, B takes half": late(),
    "not below the training process's 53 ms": exact(
        LATE, evidence=waits(67.0, worker_ms=460.0, collate_ms=0.0), inside=inside(9.0, load=1.0)
    ),
    "four full cores do 460 ms of samples and 30 of training": late(cores=4),
    "the training process's own saves what it takes": exact(
        {"device": 50.0, "host": 80.0, "worker": 81.0, "baseline": 81.0}, evidence=waits(0.0, worker_ms=40.0)
    ),
    # The sampler works in the training process.
    "a sampler": with_sampler(),
    "a sampler, where the hand-off was not measured": with_sampler("worker"),
    "a sampler, where the transfer was not, either": with_sampler("host", "worker"),
    "a sampler without workers": with_sampler(workers=0),
    "a sampler beside workers that are late": sampler_beside_late_workers(),
    # The loader alone bounds contention.
    "what the loader alone supplies is not known": alone(),
    "it is fast enough for the training: all of it is lost to the workers": alone(40.0),
    "it is between": alone(78.0),
    "it is as slow as the loop, which would wait for it just as long": alone(90.0),
    "it was measured at another time": alone(120.0),
    # A thread that pins batches holds a lock.
    "its lock is hand-off; the run queue and CPU time bound contention": pinning(),
    "without it blocking is not hand-off": pinning(pinned=False),
    "nor on the CPU": pinning(device="cpu"),
    "a lock where the hand-off was not measured": pinning("worker", megabytes=1, queue=25.0),
    "it cannot be told from contention there if bytes explain both": pinning("worker", megabytes=50),
}  # fmt: skip


def test_where_the_time_goes() -> None:
    lines = []
    for name, session in STEPS.items():
        found = diagnose_session(session).waterfall
        assert math.fsum(piece.ms.value for piece in found) == pytest.approx(LadderView(session).ms("baseline").value)
        lines += [name, *map(told, found), ""]
    agrees(Path(__file__).parent / "golden" / "waterfall.txt", "\n".join(lines))


def test_no_baseline_no_waterfall() -> None:
    assert pieces(make(without(climbing(), "baseline"))) == {}


def test_a_drift_between_the_rungs_is_in_no_piece() -> None:
    """Drift between rungs is not part of the step."""
    session = Session()
    for rung, times in {"device": (50.0, 60.0, 90.0), "baseline": (100.0, 150.0, 130.0)}.items():
        session.windows += [Window(rung, i, 10, ms / 100) for i, ms in enumerate(times)]
    found = {stage: piece.ms.value for stage, piece in pieces(session).items()}
    assert found == pytest.approx({"compute": 200 / 3, "load": 60.0})


def test_calls_of_one_transform_count_for_cuts() -> None:
    assert len(views(inside(0.4, 0.2, load=2.0), 10).links) == 20


def test_copies_never_use_up_the_step() -> None:
    assert LadderView(copied(1, 500.0)).ms("raw").value == pytest.approx(9.0)


def rate(found: Session, name: str) -> float:
    """Return the steps per second without a transform, or a stage."""
    pieces = diagnose_session(found).waterfall
    piece = next(one for one in pieces if name in (one.stage, *one.links))
    assert piece.without is not None and not piece.without.measured
    return piece.without.steps_per_s


@given(st.floats(2.0, 67.0), st.floats(50.0, 900.0), st.floats(0.2, 1.0), st.sampled_from([1, 2, 16]), st.booleans())
def test_the_table_says_what_advice_predicts(
    wait: float, worker_ms: float, worker_cpu: float, cores: int, alone: bool
) -> None:
    seen = waits(wait, worker_ms=worker_ms, worker_cpu=worker_cpu, collate_ms=0.0, process_cpu=0.5)
    rungs = {**LATE, "supply": 90.0} if alone else LATE
    found = make(rungs, noise=0.0, evidence=seen, inside=inside(1.0, 5.0, load=3.0), environment={"cores": cores})
    numbers = what_if(LadderView(found))
    for name, ms in zip("AB", numbers.work.links, strict=True):
        predicted = numbers.faster(Change(work=exactly(ms))).value
        assert rate(found, name) == pytest.approx(predicted * 1000 / 120.0)


def test_costs_are_paired_within_rounds() -> None:
    """A machine that halves its speed between rounds does not widen the interval of a cost."""
    session = make({"device": 50.0, "baseline": 60.0}, rounds=4, noise=0.0)
    for window in session.windows:
        window.seconds *= 2**window.round  # on both
    ladder = LadderView(session)
    share = ladder.share("baseline", "device")
    assert [share.value, share.low, share.high] == pytest.approx([1 / 6] * 3)
    cost = ladder.cost("baseline", "device")
    assert [cost.value, cost.low, cost.high] == pytest.approx([10.0 * (1 + 2 + 4 + 8) / 4] * 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loop_without_a_stage_is_compared_within_rounds(workers: int) -> None:
    """Cached rungs that were measured while the machine was slow say what a step saved then."""
    session = make({"device": 50.0, "raw": 60.0, "baseline": 100.0}, rounds=4, noise=0.0, workers=workers)
    for window in session.windows:
        window.seconds *= 2**window.round
    session.windows = [one for one in session.windows if one.rung == "baseline" or one.round == 3]
    ladder, found = LadderView(session), pieces(session)
    assert found["load"].without.steps_per_s == pytest.approx(1000 / (0.6 * ladder.ms("baseline").value))
    numbers = what_if(ladder)
    assert numbers.loop == pytest.approx(ladder.best.value)
    assert numbers.base > numbers.loop


def test_no_round_in_common() -> None:
    session = make({"device": 50.0}, rounds=1, noise=0.0)
    other = make({"baseline": 80.0}, rounds=2, noise=0.0).windows[1]
    session.windows.append(other)
    ladder = LadderView(session)
    cost, ratio = ladder.cost("baseline", "device"), ladder.ratio("baseline", "device")
    assert (cost.value, ratio.value) == (pytest.approx(30.0), pytest.approx(1.6))
    assert 1.0 < ratio.low < 1.55 < 1.65 < ratio.high, "as uncertain as such windows are known to be"
    assert 20.0 < cost.low < 29.0 < 31.0 < cost.high


def test_evidence_is_the_median_and_a_batch_takes_the_mean() -> None:
    """A window of 10 batches met the slow one; the other two, of 40 and 50 batches, did not."""
    session = make({"baseline": 90.0}, rounds=3)
    for window, steps, ms, queued in zip(session.windows, (10, 40, 50), (95.0, 5.0, 5.0), (0.1, 0.3, 0.9), strict=True):
        window.steps, window.evidence = steps, {"worker_ms": ms, "worker_queued": queued, "typical_ms": 5.0}
    session.windows[0].evidence["copy_ms"] = 2.0
    found = {"worker_ms": 14.0, "worker_queued": 0.3, "typical_ms": 5.0, "copy_ms": 2.0}
    assert LadderView(session).evidence("baseline") == found


class TestJoined:
    """All links together are one stage."""

    def stage(self, session: Session) -> Stage:
        """The transforms as one stage; the other stages are left alone."""
        found = diagnose_session(session).waterfall
        joined = by_stage(LadderView(session), found)
        assert [p for p in joined if p.stage != "transform"] == [p for p in found if p.stage != "transform"]
        (stage,) = (p for p in joined if p.stage == "transform")
        return stage

    def test_the_whole_stage(self) -> None:
        stage = self.stage(chained(5.0, 20.0, 10.0))
        assert (stage.ms.value, stage.share) == (pytest.approx(35.0), pytest.approx(35.0 / 86.0))
        assert (stage.links, stage.rung) == (["A", "B", "C"], "raw")

    @pytest.mark.parametrize(
        ("session", "culprit"),
        [
            (chained(5.0, 20.0), "B"),
            (chained(20.0, 5.0, 9.0), "A"),
            (chained(1.0, 2.0, 9.0), "C"),
            # Workers' time decides between links that certainly cost something: on the ladder, a link seems free if
            # it fits into the workers' spare time.
            (chained(20.0, 5.0, workers=(10.0, 15.0), evidence=waits(25.6, worker_ms=200.0)), "B"),
            (chained(20.0, 0.0, workers=(10.0, 15.0)), "A"),
            # Without workers' times the ladder decides.
            (but(chained(20.0, 5.0, workers=(0.0, 0.0)), inside__samples=0), "A"),
        ],
    )
    def test_its_culprit_is_the_costliest_link(self, session: Session, culprit: str) -> None:
        assert self.stage(session).culprit.name == culprit


class TestBelow:
    """The next faster rung, and the stages between."""

    def test_cuts_lie_between_sample_and_raw(self) -> None:
        ladder = LadderView(chained(5.0, 20.0, 10.0, 1.0, cuts=(1, 3)))
        found = {rung: (ladder.below(rung), ladder.stage(rung)) for rung in ladder.rungs[3:8]}
        assert [*found.items()] == [
            ("sample", ("worker", "collate")),
            ("transform:3", ("sample", "transform")),
            ("transform:1", ("transform:3", "transform")),
            ("raw", ("transform:1", "transform")),
            ("warm", ("raw", "load")),
        ]
        links = {rung: [link.name for link in ladder.links(rung)] for rung in ladder.rungs}
        assert {rung: names for rung, names in links.items() if names} == {
            "transform:3": ["D"],
            "transform:1": ["B", "C"],
            "raw": ["A"],
        }

    def test_a_stage_without_its_own_rung(self) -> None:
        session = lacking(chained(5.0, 20.0, cuts=(1,)), "sample", "worker")
        session.rungs["worker"] = Rung("worker", False, "no workers", exists=False)
        assert LadderView(session).covered("transform:1") == ["collate", "transform"]


def test_a_stage_is_as_certain_as_its_parts_together() -> None:
    """Each link's share of a worker's time is uncertain; their sum is less so."""
    session = chained(10.0, 10.0, 10.0, evidence=waits(30.6, worker_ms=300.0))
    ladder = LadderView(session)
    found = diagnose_session(session).waterfall
    parts = [part for part in found if part.stage == "transform"]
    stage = next(part for part in by_stage(ladder, found) if part.stage == "transform")
    assert stage.ms.value == pytest.approx(sum(part.ms.value for part in parts))
    assert stage.ms.high - stage.ms.low < sum(part.ms.high - part.ms.low for part in parts)
    assert stage.ms.low > 0


def test_parts_by_rungs_are_as_uncertain_as_the_rungs() -> None:
    session = make(climbing(raw=30.0), rounds=3, noise=0.0)
    for window, off in zip(session.windows_of("raw"), (0.7, 1.0, 1.4), strict=True):
        window.seconds *= off
    found = pieces(session)["transform"].ms
    assert found.high - found.low > 20.0


@pytest.mark.parametrize("session", [with_sampler(), with_sampler(workers=0)])
def test_what_helps_is_a_cheaper_sampler(session: Session) -> None:
    found = diagnose_session(session)
    assert found.verdict.bottleneck == "sampler" and found.verdict.certain
    assert found.verdict.culprit == Place("Balanced", "train.py:20")
    first = found.recommendations[0]
    assert (first.stage, first.title) == ("sampler", "Make Balanced cheaper")
    assert first.how.startswith("train.py:20: ")
    assert first.gain is not None and first.gain.value == pytest.approx(2.5, rel=0.05)
    assert not {"num-workers", "hand-off", "prefetch-factor"} & {one.id for one in found.recommendations}


def test_a_sampler_that_hardly_takes_time_changes_nothing() -> None:
    seen = waits(30.0, 5.0, worker_ms=200.0, collate_ms=0.0)
    plain = make(climbing(raw=30.0), evidence=seen)
    seen["baseline"]["sampler_ms"] = 0.3
    timed = make(climbing(raw=30.0), evidence=seen)
    assert diagnose_session(timed).waterfall == diagnose_session(plain).waterfall


def test_the_two_sides_of_a_thread_that_is_held_up() -> None:
    found = sides(LadderView(pinning()))
    assert (found.locked, found.lost.value) == (pytest.approx(22.0), pytest.approx(8.0))


def test_without_workers_nothing_is_lost() -> None:
    ladder = without(climbing(raw=30.0), "host", "worker")
    found = sides(LadderView(make(ladder, workers=0, device="cpu", evidence=waits(30.5))))
    assert (found.lost.value, found.locked, found.handed) == (0.0, 0.0, 0.0)
