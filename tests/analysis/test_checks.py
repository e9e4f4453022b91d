"""Warnings found in the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipediag.analysis import diagnose_session
from pipediag.session import RUNGS, BatchStep, Cost, Inside, Session, Slow, Tail, Warning_

from ..golden import agrees
from ..made import FLAT, blocks, but, climbing, cut, inside, lacking, make, waits, without

STARVED = climbing(raw=30.0)
FOUR = {"cores": 4}


def filling(before: float, under: float, quota: float | None = None, key: str = "cores_busy", **more: Any) -> Session:
    """A loop on four cores, with these in use before the costliest stage was added, and after."""
    seen = {"sample": {key: before}, "baseline": {key: under, "process_cpu": 0.5}}
    return make(STARVED, evidence=seen, environment={**FOUR, "cgroup_quota": quota}, **more)


def of_a_chain(before: float) -> Session:
    full = {"cores_busy": 3.9}
    evidence = {"sample": {"cores_busy": before}, "transform:1": full, "raw": full, "baseline": full}
    ladder = cut(STARVED, (20.0, 10.0))
    return make(ladder, evidence=evidence, environment=FOUR, inside=inside(20.0, 10.0))


def everywhere(ladder: dict[str, float], environment: dict[str, Any] = FOUR, **seen: float) -> Session:
    return make(ladder, evidence=dict.fromkeys(RUNGS, seen), environment=environment)


def disagreeing(raw: float, worker_ms: float = 100.0, **more: Any) -> Session:
    """Workers take 200 ms a batch, ``worker_ms`` without loading, and the loop waits for them."""
    seen = {**waits(50.0, worker_ms=200.0, collate_ms=0.0), "raw": {"worker_ms": worker_ms, "wait_ms": 10.0}}
    ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "raw": raw, "baseline": 100.0}
    return make(ladder, rounds=3, noise=0.0, evidence=seen, inside=inside(10.0, load=10.0), **more)


def that_does_not_wait(session: Session) -> Session:
    for window in session.windows_of("baseline"):
        window.evidence["wait_ms"] = 2.0
    return session


def without_workers_time(session: Session) -> Session:
    for window in session.windows:
        window.evidence.pop("worker_ms", None)
    return session


def beside_others(busy: float, used: float | None = 4.0, cores: int | None = 16, quota: float | None = None) -> Session:
    seen = {"cores_busy": busy, "process_cpu": 1.0, **({} if used is None else {"cores_used": used})}
    environment = {"cgroup_quota": quota, **({} if cores is None else {"cores": cores})}
    return make(STARVED, evidence={"baseline": seen}, environment=environment)


def tailed(stalled: float, p99: float = 90.0, *slowest: Slow) -> Session:
    """Slow samples matter if ready batches wait behind them."""
    session = make(climbing(warm=30.0), evidence={"baseline": {"wait_ms": 40.0, "stalled_ms": stalled}})
    return but(session, tail=Tail(400, 10.0, p99, [*slowest] or [Slow("17", 120.0), Slow("4", 95.5)]))


def again(ms: float, cpu: float = 1.0, **settings: Any) -> Session:
    """Samples of 10 ms of a core, in batches of 32 of four workers: 80 ms a step. Made again they take ``ms``."""
    seen = {"baseline": {"wait_ms": 40.0, "worker_ms": 320.0, "worker_cpu": cpu}, "warm": {"worker_ms": 32 * ms}}
    return but(make(climbing(warm=30.0), evidence=seen, **settings), tail=Tail(400, 10.0, 12.0))


def of_sizes(*sizes: tuple[float, float]) -> Session:
    return make(STARVED, inside=inside(10.0, sizes=[[1024.0 * kib, ms] for kib, ms in sizes]))


def stepping(*steps: BatchStep) -> Session:
    """Steps on one batch take the same time; steps on different batches do not."""
    return but(make(STARVED), batch_steps=list(steps))


def slow_first(found: Inside) -> Inside:
    return but(found, links__1__cost=Cost(6.0, 0.0), whole=Cost(10.0, 4.0))


#: Sessions by the codes of their warnings; golden/checks.txt holds all that is said of them.
WARNED: dict[str, dict[str, Session]] = {
    "nothing": {
        "a costly stage": make(STARVED),
        "samples made again take half": again(5.0),
        "samples that are read take a core for little of their time": again(0.1, cpu=0.03),
        "what was only observed is not measured": make(without(FLAT, *RUNGS), observed=blocks(3, 100.0, 20.0)),
        "a rung that cannot be measured is not lacking": make(
            without(climbing(), "raw", "host"), unavailable={"raw": "not separable"}, absent=["host"], device="cpu"
        ),
        "controls are not lacking": lacking(make(FLAT | {"supply": 30.0}), "supply"),
        "not monotone within the noise": make(FLAT | {"warm": 99.0}, noise=0.02),
        "not monotone, but windows of workers differ by that": make(
            FLAT | {"warm": 80.0}, rounds=1,
            evidence={rung: {"wait_ms": 90.0 if rung != "warm" else 70.0} for rung in RUNGS[2:]},
        ),
        "room is left": filling(1.0, 3.5),
        "under a quota other processes take nothing": filling(3.8, 3.9, quota=4.0),
        "room on sixteen cores": make(
            STARVED, evidence={"baseline": {"cores_busy": 3.8}}, environment={"cores": 16}
        ),
        "the number of cores is not known": make(
            STARVED, evidence={"baseline": {"cores_busy": 3.8}}, environment={"python": "3"}
        ),
        "a rung is where the workers' time puts it": disagreeing(51.0),
        "no less than the training process needs: workers that are five times as fast": disagreeing(51.0, 40.0),
        "the loop does not wait": that_does_not_wait(disagreeing(90.0)),
        "it has no workers": disagreeing(90.0, workers=0),
        "their time is not known": without_workers_time(disagreeing(90.0)),
        "one core of others": beside_others(5.0),
        "no core of others": beside_others(4.0),
        "fewer cores than the own": beside_others(3.0),
        "nine cores, under a quota": beside_others(9.0, quota=8.0),
        "how many are its own is not known": beside_others(9.0, used=None),
        "how many there are is not known": beside_others(9.0, cores=None),
        "a light tail": tailed(20.0, 29.0),
        "a tail that costs little": tailed(2.0),
        "a tail that costs nothing": tailed(0.0),
        "no tail was seen": but(tailed(20.0), tail=None),
        "an empty tail": but(tailed(20.0), tail=Tail()),
        "sizes are alike": of_sizes(*((1.0 + n / 1024, 5.0) for n in range(12))),
        "too few sizes": of_sizes(*((float(n), 5.0) for n in range(1, 6))),
        "samples of nothing": of_sizes(*[(0.0, 5.0)] * 8),
        "a batch's own steps differ as much": stepping(
            *(BatchStep(1024, [10.0 * n, 10.0 * n + 12.0]) for n in (1, 2, 3))
        ),
        "other processes made some of two steps on batches of one size longer": stepping(
            *(
                BatchStep(131072, [*ms])
                for ms in ((40, 12), (12, 12), (16, 16), (12, 12), (12, 276), (13, 20), (16, 145), (12, 9))
            )
        ),
        "steps are alike": stepping(*(BatchStep(1024 * n, [10.0 + 0.1 * n] * 2) for n in range(8))),
        "too few batches": stepping(*(BatchStep(1, [10.0 * n] * 2) for n in (1, 2))),
        "too few steps": stepping(*(BatchStep(1, [10.0 * n]) for n in (1, 2, 3))),
    },
    "partial": {
        "the loop ended": but(make(FLAT), windows=[]),
        "the budget ended": but(make(FLAT), windows=[], ended="budget"),
        "observed, with rungs": but(
            make(without(FLAT, *RUNGS), observed=blocks(3, 100.0, 20.0)), rungs=make(FLAT).rungs
        ),
        "one rung lacks windows": lacking(lacking(make(FLAT), "raw"), "warm", after=1),
        "a cut lacks windows": lacking(
            make(cut(STARVED, (10.0, 20.0)), inside=inside(10.0, 20.0)), "transform:1"
        ),
    },
    "not-monotone": {"a rung is slower than the one above it": make(STARVED | {"warm": 60.0})},
    "full-cpu": {
        "the stage has filled the machine by itself": filling(1.0, 3.8),
        "nothing is suspected of a loop that does not wait": everywhere(climbing(), cores_busy=3.9),
        "the chain has filled it": of_a_chain(1.0),
        "only the baseline was measured": make(
            {"baseline": 30.0}, evidence={"baseline": {"cores_busy": 3.8}}, environment=FOUR
        ),
        "others take little": beside_others(4.3, cores=4),
    },
    "tipping-over": {
        "the machine was full before: the stage may be innocent": filling(3.7, 3.9),
        "before the whole chain, not before its costliest link": of_a_chain(3.9),
        "what the workers do with their time": filling(3.7, 3.9, inside=inside(1.0, 6.0, load=3.0)),
        "the largest four": filling(3.7, 3.9, inside=inside(1.0, 2.0, 3.0, 4.0, 5.0, load=5.0)),
        "time without a CPU does not count": filling(3.7, 3.9, inside=slow_first(inside(1.0, 6.0, load=3.0))),
        "under a quota its own use counts": filling(3.8, 3.9, quota=4.0, key="cores_used"),
        "without a quota its own use counts": filling(3.8, 3.9, key="cores_used"),
    },
    "foreign-load": {
        "five cores of others": beside_others(9.0),
        "the least that is said": beside_others(5.7),
        "half a core of two": beside_others(1.5, used=1.0, cores=2),
        "others fill the machine": everywhere(STARVED, cores_busy=3.8, cores_used=0.5),
        "others fill half of it": everywhere(STARVED, cores_busy=3.8, cores_used=1.8),
    },
    "foreign-load, tipping-over": {"others take the rest": everywhere(STARVED, cores_busy=3.8, cores_used=3.0)},
    "rungs-disagree": {"a rung is far from where the workers' time puts it": disagreeing(90.0)},
    "heavy-tail": {
        "two slow samples": tailed(20.0),
        "at most four are named": tailed(20.0, 90.0, *(Slow(f"i{n}", 99.0) for n in range(8))),
        "items of a stream have no index": tailed(20.0, 90.0, Slow("", 120.0)),
    },
    "keeps-samples": {
        "and loses them with the workers": again(0.1),
        "for later epochs": again(0.1, persistent=True),
    },
    "varying-sizes": {
        "by class of size": of_sizes((40, 9.0), (10, 2.0), (20, 4.0), (11, 3.0), (22, 5.0), (44, 10.0)),
    },
    "varying-steps": {
        "by size": stepping(*(BatchStep(1024 * n, [10.0 * n, 10.0 * n + 0.2]) for n in (1, 2, 3))),
        "by content": stepping(*(BatchStep(1024, [10.0 * n, 10.0 * n + 0.2]) for n in (1, 2, 3))),
    },
    "wrote-files": {"six files": but(make(FLAT), script__wrote=[f"out{i}.pt" for i in range(6)])},
}  # fmt: skip


def codes(session: Session) -> list[str]:
    return [warning.code for warning in diagnose_session(session).warnings]


def test_what_is_warned_of() -> None:
    lines = []
    for expected, sessions in WARNED.items():
        for name, session in sessions.items():
            diagnosis = diagnose_session(session)
            assert (", ".join(codes(session)) or "nothing") == expected, name
            assert diagnosis.partial == (expected == "partial"), name
            said = [f"    {one.message}{f' ({one.help})' if one.help else ''}" for one in diagnosis.warnings]
            lines += [f"{expected}: {name}", *said, ""] if said else []
    agrees(Path(__file__).parent / "golden" / "checks.txt", "\n".join(lines))


def test_a_dataset_that_keeps_its_samples_starves_less_later() -> None:
    kept = {persistent: diagnose_session(again(0.1, persistent=persistent)).verdict for persistent in (False, True)}
    assert kept[False].certain
    assert kept[True].uncertain == "the dataset keeps what it has made, so later epochs cost less"


def test_a_verdict_is_not_proven_where_rungs_disagree() -> None:
    levels = [diagnose_session(disagreeing(raw)).verdict.level for raw in (51.0, 90.0)]
    assert levels == ["proven", "intervened"]


def test_warnings_of_the_measurement_come_first_and_are_not_added_to() -> None:
    session = lacking(make(FLAT), "raw")
    session.warn("writes-in-place", "it does")
    assert codes(session) == ["writes-in-place", "partial"]
    assert codes(session) == ["writes-in-place", "partial"]
    assert session.warnings == [Warning_("writes-in-place", "it does")]
