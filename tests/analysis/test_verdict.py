"""The verdict: every class, with its band, co-bottlenecks, ceiling and numbers; the interim result in a few words."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.compare import compare
from pipediag.analysis.numbers.intervals import Interval
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.stopping import next_round
from pipediag.analysis.summary import summarise
from pipediag.analysis.thresholds import GATE, SEVERE
from pipediag.analysis.verdict import decided, measured_share, so_far, starved_share
from pipediag.analysis.words import percent
from pipediag.report import RENDERERS
from pipediag.session import RUNGS, Account, HotLine, Observed, Session, SlowBatches

from ..golden import agrees
from ..made import FLAT, blocks, but, climbing, cut, inside, make, waits, without


def judged(session: Session) -> Diagnosis:
    diagnosis = diagnose_session(session)
    assert diagnosis.verdict.bottleneck in (*VERDICTS, "sampler")
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    return diagnosis


def told(diagnosis: Diagnosis) -> list[str]:
    """Return all of a verdict as lines of a book."""
    one, share = diagnosis.verdict, diagnosis.verdict.starved
    starved = f"{share.value:.3g} ({share.low:.2g} to {share.high:.2g})" if share is not None else "unknown"
    certain = "certain" if one.certain else f"not certain{f': {one.uncertain}' if one.uncertain else ''}"
    lines = [f"    {one.band}, {one.level or 'nothing seen'}, {certain}; data costs {starved} of a step"]
    lines += [f"    beside it: {', '.join(one.co_bottlenecks)}"] if one.co_bottlenecks else []
    lines += [f"    culprit: {one.culprit.name} {one.culprit.where}".rstrip()] if one.culprit is not None else []
    lines += [f"    then: {one.next_ceiling[0]}, {one.next_ceiling[1]:.4g} steps/s"] if one.next_ceiling else []
    step = [
        f"{piece.stage} {round(piece.ms.value, 4):.3g} (from {round(piece.ms.low, 4):.3g})"
        for piece in diagnosis.waterfall
    ]
    return [*lines, *([f"    step: {', '.join(step)}"] if step else []), f"    {one.sentence}"]


def thread(cpu_ms: float, queue_ms: float) -> dict[str, Account]:
    """Accounts of a training thread that computes 50 ms of a step under each rung, and this under the baseline."""
    return dict.fromkeys(RUNGS, Account(cpu_ms=50.0)) | {"baseline": Account(cpu_ms=cpu_ms, queue_ms=queue_ms)}


def exact(ladder: dict[str, float], **more: Any) -> Session:
    return make(ladder, noise=0.0, **more)


def kept_batches() -> Session:
    session = make(climbing(raw=60.0))
    session.warn("kept-batches", "as with itertools.cycle")
    return session


def loaded(busy: float) -> Session:
    """Other processes took ``busy - 4`` of 8 cores in every window alike: it remains of a step as contention does."""
    seen = {rung: {"cores_busy": busy, "cores_used": 4.0} | ON_TIME.get(rung, {}) for rung in RUNGS}
    return exact(climbing(raw=30.0), evidence=seen, accounts=thread(52.0, 28.2), environment={"cores": 8})


def once(passes: int, busy: float) -> Session:
    seen = waits(50.0, worker_ms=100.0, worker_cpu=1.0, cores_busy=busy, cores_used=1.0)
    session = exact(climbing(raw=50.0), rounds=1, evidence=seen, environment={"cores": 2})
    return but(session, script__passes=passes)


def shared_among_groups() -> Session:
    seen = waits(0.4, worker_ms=15.0, worker_cpu=1.0, cores_busy=2.0, cores_used=0.5)
    seen |= {rung: {"cores_busy": 2.0, "cores_used": 0.5} for rung in ("device", "host", "worker")}
    ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 110.0}
    return exact(ladder, evidence=seen, accounts=thread(50.0, 60.0), environment={"cores": 2})


def held_up() -> Session:
    """The loop waits 10 ms, its workers need 8 ms a batch, and its CPU time is equal under all rungs: 460 of 732 ms."""
    ladder = {"device": 447.0, "host": 447.0, "worker": 469.0, "baseline": 732.0}
    seen = {"worker": {"wait_ms": 9.0}, "baseline": {"wait_ms": 10.0, "worker_ms": 16.0, "worker_cpu": 0.5}}
    accounts = {
        **dict.fromkeys(("device", "host"), Account(cpu_ms=447.0)),
        "worker": Account(cpu_ms=460.0, waits_ms=9.0),
        "baseline": Account(cpu_ms=460.0, queue_ms=262.0, waits_ms=10.0),
    }
    return exact(ladder, workers=2, device="cpu", evidence=seen, accounts=accounts)


def varying(session: Session, rung: str, *factors: float) -> Session:
    """Make the windows of a rung these times as long, in turn."""
    for window, factor in zip(session.windows_of(rung), itertools.cycle(factors), strict=False):
        window.seconds *= factor
    return session


def ends_are_precise() -> Session:
    session = make({"device": 50.0, "baseline": 100.0}, noise=0.001)
    between = exact(dict.fromkeys(RUNGS[1:-1], 75.0))
    for number, window in enumerate(between.windows):
        window.seconds *= (0.5, 1.5, 1.2, 0.8)[number % 4]
    session.windows += between.windows
    return session


def waiting_now_and_then() -> Session:
    session = exact(TWO_SIDES, evidence=waits(10.6))
    for window, wait in zip(session.windows_of("baseline"), (0.0, 25.0, 1.0, 27.0, 0.0), strict=True):
        window.evidence["wait_ms"] = wait
    return session


def chained(*costs: float, cuts: tuple[int, ...] = (), **ladder: float) -> Session:
    """A chain cut at these places (by default everywhere), whose links cost training as much as the workers."""
    return exact(cut(climbing(raw=sum(costs), **ladder), costs, *cuts), inside=inside(*costs))


def sharing(workers: int = 8, cores: int = 4, own: int = 1, **threads: int) -> Session:
    found = inside(10.0, threads=threads, lines=[HotLine("data.py:7", "", 0.2, calls={"cv2.imread": 0.2})])
    environment = {"cores": cores, "threads": {"torch": own}}
    return exact(climbing(raw=30.0), evidence=waits(0.5), workers=workers, inside=found, environment=environment)


def without_workers(device: float, wait: float, **more: float) -> Session:
    return exact({"device": device, **more, "baseline": 100.0}, workers=0, device="cpu", evidence=waits(wait))


#: Workers that take 200 ms for a batch, all of it on a CPU, and for which the loop hardly waits.
ON_TIME = waits(0.4, worker_ms=200.0, worker_cpu=1.0)
TWO_SIDES = climbing(host=20.0, raw=10.0)
NOT_SPLIT: dict[str, Any] = {"unavailable": {"raw": "not separable"}}
RAW_MISSING = without(climbing(raw=30.0), "raw")
#: Sessions by their bottleneck; golden/verdict.txt holds all that is said of them.
VERDICTS: dict[str, dict[str, Session]] = {
    "none": {
        "a step of 101 ms, 100 with cached batches": exact(FLAT | {"baseline": 101.0}),
        "2 % of a step": make(climbing(raw=1.0), noise=0.0005),
        "hardly any wait for another loader, as part of its own step under each rung": make(
            climbing(), evidence=waits(0.1, beside_ms=2.0)
        ),
        "a slow start of workers that persist": make(FLAT, startups=[5.0, 5.0], length=10, persistent=True),
        "a slow start of epochs of unknown length": make(FLAT, startups=[5.0, 5.0], length=None),
        "a slow start without workers": make(FLAT, startups=[5.0, 5.0], length=10, workers=0),
        "a slow start of long epochs": make(FLAT, startups=[5.0, 5.0], length=10_000),
        "one window of each rung on a noisy host leaves room for 20 %, but the loop was seen to wait 1 %": exact(
            {"device": 98.0, "baseline": 100.0}, rounds=1, workers=2, device="cpu", evidence=waits(1.0)
        ),
        "by pace alone it would be open, but the loop waits 1 ms": exact(
            climbing(raw=1.4), rounds=1, evidence=waits(1.0, 0.0)
        ),
        "it does not wait at all": exact(climbing(raw=1.4), rounds=1, evidence=waits(0.0, 0.0)),
        "4 % are certain": exact({"device": 50.0, "sample": 50.0, "raw": 52.0, "baseline": 52.0}),
        "another run may find more than 5 %": exact({"device": 50.0, "sample": 50.0, "raw": 52.4, "baseline": 52.4}),
        "as observed in 4 steps": make({}, observed=blocks(1, 100.0, 0.5), device="cuda"),
        "as observed in 80 steps on the CPU": make({}, observed=blocks(20, 100.0, 0.5), device="cpu"),
        "proven by six rounds": exact(FLAT, rounds=6),
    },
    "inconclusive": {
        "it waits for another loader, too": make(climbing(), evidence=waits(0.1, beside_ms=20.0)),
        "it was seen to wait for another loader, too": make(
            {}, observed=[replace(one, evidence={"beside_ms": 20.0}) for one in blocks(20, 100.0, 0.5)], device="cpu"
        ),
        "a noisy host, and it waits 4.5 %": exact(
            {"device": 98.0, "baseline": 100.0}, rounds=1, workers=2, device="cpu", evidence=waits(4.5)
        ),
        "without a ladder": make({"baseline": 100.0}),
        "without a baseline": make(without(FLAT, "baseline")),
        "without anything": Session(),
        "one window of each rung near the gate": make(climbing(raw=3.0), rounds=1),
        "by pace alone": exact(climbing(raw=1.4), rounds=1),
        "it waits 3 ms": exact(climbing(raw=1.4), rounds=1, evidence=waits(3.0, 0.0)),
        "no cost in one round, which may be chance": exact(FLAT, rounds=1),
        "hand-off under foreign load is not called certain": held_up(),
        "observed around the gate": make({}, observed=[*blocks(1, 100.0, 3.0), *blocks(1, 100.0, 12.0)]),
    },
    "transfer": {
        "whose inclusion costs the time": make(climbing(host=30.0)),
        "what others hide brings nothing alone: workers take 81 ms for a batch, and the loop hardly waits": exact(
            TWO_SIDES, evidence=waits(2.4)
        ),
        "a wait of 0.4 ms does not count": exact(climbing(host=20.0), evidence=waits(0.4)),
        "the largest while it is open: it may wait 13 % of its step or not at all": waiting_now_and_then(),
        "without workers there is one side": exact(
            without(TWO_SIDES, "worker"), workers=0, absent=["worker"], evidence=waits(10.6)
        ),
    },
    "ipc": {
        "whose inclusion costs the time": make(climbing(worker=30.0)),
        "waiting longer than a batch is made: 30 ms a step, and a worker makes one in 0.8 ms": exact(
            {"device": 6.0, "worker": 16.0, "baseline": 36.0}, workers=2, evidence=waits(30.0, 10.0, worker_ms=0.8)
        ),
        "its own cost is not the workers' presence: batches are handed over even if no worker is late": exact(
            climbing(worker=25.0), evidence=waits(0.5)
        ),
        "of a rung that was not measured, so not proven": exact(
            {"device": 50.0, "baseline": 100.0}, evidence=waits(5.0)
        ),
    },
    "collate": {"whose inclusion costs the time": make(climbing(sample=30.0))},
    "transform": {
        "whose inclusion costs the time": make(climbing(raw=30.0)),
        "the sentence has the numbers": exact(climbing(raw=30.0)),
        "on a CPU": make(without(climbing(raw=30.0), "host"), absent=["host"], device="cpu"),
        "mild": make(climbing(raw=7.0), noise=0.0005),
        "severe": make(climbing(raw=30.0), noise=0.0005),
        "its cost is not certain, as the loop waits for another loader, too": make(
            climbing(raw=60.0), evidence=waits(60.0, beside_ms=20.0)
        ),
        "figures of many epochs": make(climbing(raw=60.0)),
        "figures of one epoch are not certain": kept_batches(),
        "a start that costs less": make(climbing(raw=30.0), startups=[1.0, 1.0], length=100),
        "at most what the thread lost is contention: it waits for a core 5 ms": exact(
            climbing(raw=30.0), evidence=ON_TIME, accounts=thread(50.0, 5.0)
        ),
        "measured once": once(2, 1.0),
        "measured once, of a short script": once(3, 1.0),
        "measured once, of a short script beside others": once(3, 1.8),
        "measured once beside others": once(1, 1.8),
        "late above all, and contention": exact(climbing(raw=30.0), evidence=waits(20.0)),
        "what handing over waits is no lateness: 5 ms a step if the workers only send": exact(
            climbing(raw=30.0), evidence=waits(35.6, 5.0)
        ),
        "without workers nobody is in the way": make(
            without(climbing(raw=30.0), "host", "worker"), workers=0, device="cpu", absent=["host", "worker"],
            evidence=waits(30.5),
        ),
        "one window of each rung names the stage but proves nothing": make(climbing(raw=30.0), rounds=1),
        "another run may find less than 5 %": exact({"device": 50.0, "sample": 50.0, "raw": 52.8, "baseline": 52.8}),
        "7 % are certain": exact({"device": 50.0, "sample": 50.0, "raw": 54.0, "baseline": 54.0}),
        "a stage at least half as large is named, a small one is not": make(climbing(raw=40.0, warm=38.0, host=10.0)),
        "the next ceiling is a smaller stage that is worth it": make(climbing(raw=40.0, host=10.0)),
        "the side that binds: what the loop waits for hides its own costs, however large": exact(
            TWO_SIDES, evidence=waits(10.6)
        ),
        "nobody is said to be in the way while it is open": varying(
            exact(climbing(raw=30.0), evidence=waits(8.0)), "worker", 0.4, 1.6, 1.0, 0.5, 1.5
        ),
        "the costliest link is the culprit, the ceiling is without all": chained(2.0, 25.0, 5.0),
        "links of like cost are named together": chained(20.0, 2.0, 12.0),
        "at most three": chained(*[10.0] * 5),
        "a range that was not cut further": chained(8.0, 8.0, 8.0, cuts=(2,)),
        "a link without a place": but(chained(2.0, 25.0), links__1__where=""),
        "a chain that was not cut": make(climbing(raw=30.0), inside=inside(10.0, 20.0, unsplit="because")),
        "links together beat a stage that is larger than each": chained(10.0, 10.0, 10.0, warm=15.0),
        "not told from loading by the ladder, but by the workers' time": exact(
            RAW_MISSING, inside=inside(1.0, 15.0, load=4.0), evidence=waits(30.6, worker_ms=324.0), **NOT_SPLIT
        ),
        "what a few slow batches take may be loading": exact(
            RAW_MISSING,
            inside=inside(1.0, 15.0, load=4.0),
            evidence=waits(30.6, worker_ms=324.0, typical_ms=190.0),
            **NOT_SPLIT,
        ),
        "even if it is, loading costs less": exact(
            RAW_MISSING,
            inside=inside(1.0, 15.0, load=4.0),
            evidence=waits(30.6, worker_ms=324.0, typical_ms=260.0),
            **NOT_SPLIT,
        ),
        "observed, divided by the workers' time; without a stage they take that much less": make(
            {}, observed=blocks(6, 100.0, 60.0, 400.0), inside=inside(1.0, 6.0, load=3.0)
        ),
    },
    "load": {
        "most of the workers' time, but the loop without it is as slow": exact(
            climbing(raw=30.0),
            inside=inside(9.0, load=10.0),
            evidence=waits(30.6, worker_ms=324.0),
        ),
        "whose inclusion costs the time": make(climbing(warm=30.0)),
        "with transforms that could not be split off": make(RAW_MISSING, **NOT_SPLIT),
        "most of it goes into a link": exact(RAW_MISSING, inside=inside(1.0, 15.0, load=4.0), **NOT_SPLIT),
        "it takes the time itself": exact(RAW_MISSING, inside=inside(1.0, 5.0, load=14.0), **NOT_SPLIT),
        "no link is to blame": chained(6.0, 3.0, warm=40.0),
        "without workers, what cached batches save beyond the wait: a core that was idle is slower": without_workers(
            10.0, 80.0
        ),
        "without workers, the wait whatever cached batches save": without_workers(97.0, 20.0),
        "without workers, a cost outside of the wait is not certain": without_workers(90.0, 3.0, sample=92.0),
        "without workers, most of it in the wait": without_workers(90.0, 9.0, sample=92.0),
        "only the two ends: its origin is not proven": make({"device": 50.0, "baseline": 100.0}, rounds=2),
        "a hiccup under the cache, in one of three windows": but(
            exact({"device": 0.25, "baseline": 18.0}, rounds=3), windows__4__seconds=0.025
        ),
        "one window of each says what such windows differ by": exact({"device": 1.0, "baseline": 18.0}, rounds=1),
        "observed in 4 steps": make({}, observed=blocks(1, 100.0, 60.0, noise=0.05), device="cuda"),
        "observed in 24 steps on the CPU": make({}, observed=blocks(6, 100.0, 60.0, noise=0.05), device="cpu"),
        "observed in 160 steps": make({}, observed=blocks(40, 100.0, 60.0, noise=0.05), device="cuda"),
        "one window of the baseline: the observed steps have done their part": exact(
            {"baseline": 80.0}, rounds=1, evidence=waits(20.0), observed=blocks(9, 100.0, 60.0)
        ),
        "fed from a cache before the first window of the loop as it is": exact(
            {"device": 40.0, "worker": 42.0}, observed=blocks(9, 100.0, 56.0, noise=0.05)
        ),
    },
    "storage": {"whose inclusion costs the time": make(climbing(baseline=30.0))},
    "startup": {
        "500 ms of each step": make(FLAT, startups=[9.0, 5.0, 5.0], length=10),
        "beside a starved loop": make(climbing(raw=30.0), startups=[5.0, 5.0], length=10),
    },
    "contention": {
        "30.2 of 81 ms are neither waiting nor needed with batches ready": exact(
            climbing(raw=30.0), evidence=ON_TIME, accounts=thread(52.0, 28.2)
        ),
        "not certain where the kernel does not count": exact(climbing(raw=30.0), evidence=waits(0.4)),
        "on a machine of its own": loaded(4.0),
        "not certain beside others": loaded(6.0),
        "workers that are late as well, and still take as long": exact(climbing(raw=30.0), evidence=waits(12.0)),
        "workers on time are not free where cores are shared among groups: 15 ms may be all of 60 ms": (
            shared_among_groups()
        ),
        "threads of OpenCV": sharing(torch=1, opencv=16),
        "threads of torch": sharing(torch=4, opencv=1),
        "threads of the training process": sharing(workers=2, own=4, torch=1),
        "workers alone are too many": sharing(torch=1),
        "room for all": sharing(workers=3, torch=1),
        "threads of a library that a later version knows": sharing(numexpr=8),
        "nothing is known of threads": exact(
            climbing(raw=30.0), workers=4, evidence=waits(0.5), environment={"cores": 16}
        ),
        "nothing is known of cores": exact(climbing(raw=30.0), evidence=waits(0.5), environment={"python": "3"}),
    },
}  # fmt: skip


def test_what_is_said() -> None:
    lines = []
    for bottleneck, sessions in VERDICTS.items():
        for name, session in sessions.items():
            diagnosis = judged(session)
            assert diagnosis.verdict.bottleneck == bottleneck, (name, diagnosis.verdict)
            lines += [f"{bottleneck}: {name}", *told(diagnosis), ""]
    agrees(Path(__file__).parent / "golden" / "verdict.txt", "\n".join(lines))


def test_thresholds_are_the_published_ones() -> None:
    assert (GATE, SEVERE) == (0.05, 0.20)


@pytest.mark.parametrize(("queue", "certain"), [(30.0, False), (5.0, True)])
def test_a_share_beside_processes_that_hold_up_the_step_is_not_certain(queue: float, certain: bool) -> None:
    """Fed from a cache, the loop waits 30 of 81 ms for a core. Its reads sleep: without the others they cost more."""
    seen = waits(50.0, worker_ms=80.0, worker_cpu=0.1)
    seen = {rung: {"cores_busy": 2.0, "cores_used": 1.0} | seen.get(rung, {}) for rung in RUNGS}
    accounts = dict.fromkeys(RUNGS, Account(cpu_ms=30.8 - min(queue, 20.0), queue_ms=queue))
    found = judged(exact(climbing(raw=30.0), evidence=seen, accounts=accounts, environment={"cores": 2})).verdict
    assert found.certain is certain
    told = "other processes used 1 of 2 cores; without them data may cost up to 75 %"
    assert found.uncertain == ("" if certain else told)


def test_contention_of_workers_that_use_little_cpu_is_foreign() -> None:
    """Workers that compute 8 ms a batch cost the training at most 16 ms for a core where others have half of them."""
    seen = waits(0.4, worker_ms=8.0, worker_cpu=1.0, cores_busy=2.0, cores_used=1.0)
    session = exact(climbing(raw=30.0), evidence=seen, accounts=thread(50.0, 30.2), environment={"cores": 2})
    diagnosis = judged(session)
    assert max((piece.ms.value for piece in diagnosis.waterfall if piece.stage == "contention"), default=0.0) <= 16.0
    assert not diagnosis.verdict.certain and "other processes used 1 of 2 cores" in diagnosis.verdict.uncertain


@pytest.mark.parametrize("wait", [0.0, 10.0, 40.0, 81.0])
def test_no_ceiling_above_that_of_cached_batches(wait: float) -> None:
    """The loop may have waited more or less than rungs measured at another time suggest."""
    verdict = judged(make(climbing(raw=30.0), evidence=waits(wait))).verdict
    assert verdict.next_ceiling is not None
    assert 0 < verdict.next_ceiling[1] <= 1000 / 50 * 1.01


@pytest.mark.parametrize(
    ("device", "wait", "said"),
    [(99.9, 3.0, "99.9 ms with cached batches; the loop waits for data 3 %"),
     (96.0, 1.0, "96 ms with cached batches, so data costs 4 %")],
)  # fmt: skip
def test_what_costs_little_is_the_step_or_the_wait(device: float, wait: float, said: str) -> None:
    """Steps with cached batches may be as long as those in which the loop waits."""
    session = exact({"device": device, "worker": device, "warm": 100.0, "baseline": 100.0}, evidence=waits(wait))
    verdict = judged(session).verdict
    assert verdict.bottleneck == "none"
    assert f"a step takes 100 ms with the loader and {said}" in verdict.sentence


@pytest.mark.parametrize(("device", "wait", "step"), [(10.0, 80.0, 10.0), (97.0, 20.0, 80.0)])
def test_without_workers_the_rest_of_the_step_is_the_inputs_too(device: float, wait: float, step: float) -> None:
    diagnosis = judged(without_workers(device, wait))
    assert diagnosis.waterfall[0].ms.value == pytest.approx(step)
    assert summarise(diagnosis).rates[-1].steps_per_s == pytest.approx(1000 / step)


@pytest.mark.parametrize(
    "device, wait, host, certain",
    [(70.0, 29.0, None, True), (45.0, 29.0, None, False), (45.0, 29.0, 70.0, True), (90.0, 4.0, None, False)],
)
def test_without_workers_the_input_costs_little_beyond_the_wait(
    device: float, wait: float, host: float | None, certain: bool
) -> None:
    """If batches become longer as the training goes on, steps with those that were cached first are no ceiling."""
    verdict = judged(without_workers(device, wait, **({} if host is None else {"host": host}))).verdict
    assert verdict.certain is certain
    assert certain or verdict.uncertain == f"it makes its batches in {wait:.0f} % of a step"


def test_inconclusive_in_noise() -> None:
    """The pipeline costs 5 % of a step, and windows differ by that much."""
    found = [judged(make(climbing(raw=1.6), rounds=3, noise=0.05, seed=seed)).verdict for seed in range(20)]
    open_ones = [verdict for verdict in found if verdict.bottleneck == "inconclusive"]
    assert len(open_ones) >= 15
    assert all("longer budget" in verdict.sentence for verdict in open_ones)


def test_starved_though_what_costs_it_is_uncertain() -> None:
    """Both ends of the ladder are precise, and the rungs between vary from round to round: the loop starves."""
    verdict = judged(ends_are_precise()).verdict
    assert verdict.bottleneck not in ("inconclusive", "none")
    assert verdict.level == "intervened" and "50 %" in verdict.sentence


@pytest.mark.parametrize("cost, half_width", [(0.0, 0.0), (50.0, 0.25 * 0.25), (200.0, 0.25 * 0.2 * 0.8)])
def test_the_share_holds_for_another_run(cost: float, half_width: float) -> None:
    """Its input may cost a quarter more or less, which says little of a share near 0 or 1."""
    rungs = {"device": 50.0, "baseline": 50.0 + cost}
    ladder = LadderView(make(rungs, noise=0.0))
    measured, told = measured_share(ladder), starved_share(ladder)
    assert told.value == measured.value == pytest.approx(cost / (50.0 + cost))
    assert told.value - told.low == pytest.approx(math.hypot(half_width, measured.value - measured.low))
    assert told.high - told.value == pytest.approx(math.hypot(half_width, measured.high - measured.value))


@pytest.mark.parametrize(
    "slow, ms, workers, cost, certain",
    [
        (0, 900.0, 0, 5.0, True),
        (1, 900.0, 0, 5.0, False),
        (1, 900.0, 4, 5.0, False),
        (1, 900.0, 0, 0.5, False),
        (1, 60.0, 4, 0.5, True),  # the workers hide it
        (40, 45.0, 0, 150.0, True),  # every step has some of them
    ],
)
def test_a_few_slow_batches_leave_it_open(slow: int, ms: float, workers: int, cost: float, certain: bool) -> None:
    """The windows of another run may hold none of them, or twice as many."""
    session = make({"device": 50.0, "baseline": 50.0 + cost}, noise=0.0, workers=workers, evidence=waits(cost))
    session.slow_batches = SlowBatches(100, [ms] * slow)
    assert judged(session).verdict.certain is certain


@pytest.mark.parametrize("rung", ["raw", "host"])
def test_the_loop_starves_no_less_than_it_waits(rung: str) -> None:
    """Under ``raw`` the loop waits for its workers too, and cached windows may have met other load."""
    verdict = judged(exact({rung: 90.0, "baseline": 100.0}, evidence=waits(50.0))).verdict
    assert verdict.starved is not None and verdict.starved.value == pytest.approx(0.5)
    assert verdict.starved.low > 0.4


@given(st.dictionaries(st.sampled_from(RUNGS), st.floats(0.01, 5000), min_size=1), st.integers(1, 4), st.integers())
def test_any_ladder_gets_a_verdict(ladder: dict[str, float], rounds: int, seed: int) -> None:
    verdict = judged(make(ladder, rounds=rounds, noise=0.05, seed=seed)).verdict
    assert verdict.sentence
    if verdict.next_ceiling is not None:
        assert verdict.next_ceiling[1] > 0


def test_the_same_session_gets_the_same_diagnosis() -> None:
    assert judged(make(climbing(raw=9.0))).to_dict() == judged(make(climbing(raw=9.0))).to_dict()


@settings(max_examples=30)
@given(st.lists(st.floats(0.0, 40.0), min_size=2, max_size=6), st.integers())
def test_any_chain_gets_a_verdict(costs: list[float], seed: int) -> None:
    session = make(cut(climbing(raw=sum(costs)), costs), noise=0.05, seed=seed, inside=inside(*costs))
    assert judged(session).verdict.sentence


@pytest.mark.parametrize("steps, ms, said", [(1, 0.0, "inconclusive"), (4, 0.0, "none"), (1, 50.0, "load")])
def test_the_first_steps_do_not_show_that_nothing_is_lost(steps: int, ms: float, said: str) -> None:
    """They are slow, and their batches were made before them: that a step waits all the same is shown by one."""
    session = make({}, observed=blocks(1, 100.0, ms, steps=steps))
    verdict = judged(session).verdict
    assert (verdict.bottleneck, verdict.certain) == (said, False)


def test_more_blocks_know_it_better() -> None:
    found = [judged(make({}, observed=blocks(n, 100.0, 60.0, noise=0.05))).verdict.starved for n in (1, 4, 40)]
    widths = [share.high - share.low for share in found if share is not None]
    assert len(widths) == 3 and widths == sorted(widths, reverse=True)


class TestDecided:
    """Whether the loop starves, by the interval of its share."""

    @pytest.mark.parametrize(
        "ends, answer",
        [
            ((0.06, 0.4, 0.9), True),
            ((0.0, 0.02, 0.04), False),
            ((-0.3, -0.1, 0.04), False),
            ((0.01, 0.2, 0.5), None),
            ((0.0, 0.03, 0.051), None),
        ],
    )
    def test_by_which_side_of_the_gate_it_lies_on(self, ends: tuple[float, float, float], answer: bool | None) -> None:
        low, value, high = ends
        assert decided(Interval(value, low, high)) is answer

    @pytest.mark.parametrize("value, answer", [(0.052, True), (0.049, False), (GATE, False)])
    def test_a_short_one_around_the_gate_by_its_value(self, value: float, answer: bool) -> None:
        assert decided(Interval(value, 0.03, 0.08)) is answer

    def test_such_a_loop_gets_a_verdict(self) -> None:
        session = make({"device": 95.0, "worker": 95.0, "raw": 96.0, "baseline": 101.0}, rounds=8, noise=0.012)
        share = starved_share(LadderView(session))
        assert share is not None and share.low < GATE < share.high
        assert judged(session).verdict.bottleneck in ("none", "load", "storage")


class TestOlderSessions:
    """A file of a version with other rungs."""

    def older(self) -> Session:
        session = make(climbing(raw=30.0))
        data = session.to_dict()
        for name in ("observed",):
            del data[name]
        for window in data["windows"]:
            window["blocks"] = [1000.0]
        for rung in ("device+load", "shuffled", "transform:x"):
            data["rungs"][rung] = {"name": rung, "available": True, "why_not": "", "exists": True}
            data["windows"] += [
                {"rung": rung, "round": n, "steps": 10, "seconds": 0.75, "optimizer_steps": 10, "attempt": 1}
                for n in range(3)
            ]
        return Session.from_dict(data)

    def test_they_get_the_same_verdict(self) -> None:
        assert judged(self.older()).verdict == judged(make(climbing(raw=30.0))).verdict

    def test_rungs_that_are_not_known_are_in_no_report(self) -> None:
        session = self.older()
        for windows in (session.windows, [w for w in session.windows if w.rung in RUNGS]):
            session.windows = windows
            diagnosis = judged(session)
            assert not diagnosis.partial
            assert not {"device+load", "shuffled"} & {rung["name"] for rung in diagnosis.to_dict()["rungs"]}
            for ending in (".txt", ".md"):
                text = RENDERERS[ending](diagnosis)
                assert "shuffled" not in text and "device+load" not in text

    def test_nor_in_a_comparison(self) -> None:
        found = compare(judged(self.older()), judged(make(climbing(raw=30.0))))
        assert [one.rung for one in found.rungs] == list(RUNGS)
        assert not found.loop.significant if found.loop else False

    def test_nothing_more_is_asked_of_them(self) -> None:
        assert not {"device+load", "shuffled"} & {*next_round(self.older())}


WAITS = "the loop waits 50 % of a step in next()"


@pytest.mark.parametrize(
    ("session", "told"),
    [
        # Nothing before the loop was seen to wait.
        (make({}), []),
        (make({"baseline": 100.0}, noise=0.0), []),
        # Twelve steps of 100 ms before any window, half of it waiting.
        (make({}, workers=4, observed=[Observed(4, 0.4, 0.2)] * 3), [WAITS]),
        (
            make({"baseline": 100.0}, noise=0.0, workers=8, evidence=waits(50.0, worker_ms=400.0)),
            [WAITS, "a step takes 100 ms, a batch from 8 workers 50 ms"],
        ),
        # There are no workers, or they have told nothing.
        (make({}, workers=0, observed=[Observed(4, 0.4, 0.2, worker_ms=120.0)] * 3), [WAITS]),
        (make({}, workers=4, observed=[Observed(4, 0.4, 0.2, worker_ms=0.0)] * 3), [WAITS]),
        (but(make({}, observed=[Observed(4, 0.4, 0.2, worker_ms=120.0)] * 3), loader=None), [WAITS]),
    ],
)
def test_so_far(session: Session, told: list[str]) -> None:
    assert so_far(session) == told


@pytest.mark.parametrize("workers, pace", [(4, "a batch from 4 workers 30 ms"), (1, "a batch from 1 worker 120 ms")])
def test_how_fast_the_workers_are(workers: int, pace: str) -> None:
    """At first the loop consumes batches queued during its slow first step, and hardly waits."""
    session = make({}, workers=workers, observed=[Observed(4, 0.4, 0.0, worker_ms=120.0)] * 3)
    assert so_far(session) == ["the loop waits 0 % of a step in next()", f"a step takes 100 ms, {pace}"]


def test_what_a_sample_is_comes_last() -> None:
    seen = waits(50.0, worker_ms=400.0)
    session = make({"baseline": 100.0}, noise=0.0, workers=8, evidence=seen, inside=inside(4.0, 1.0, load=5.0))
    assert so_far(session)[2:] == ["loading is 50 % of a sample"]


def test_fed_from_a_cache_it_is_the_figure_of_the_headline() -> None:
    session = make(climbing(raw=50.0), noise=0.0, evidence=waits(1.0))
    starved = diagnose_session(session).verdict.starved
    assert so_far(session) == [f"data costs {percent(starved.value)} of a step of 101 ms"]
