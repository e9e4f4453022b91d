"""What an epoch's start and other loaders cost, from those that were seen: exactly, and never certain from one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.amortised import (
    EpochStart,
    amortised,
    epoch_start,
    other_loaders,
    wants_start,
    with_amortised,
)
from pipediag.analysis.diagnosis import Recommendation, Stage
from pipediag.analysis.numbers.intervals import Interval
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.summary import summarise
from pipediag.report.evidence import evidence_lines
from pipediag.session import OtherStart, Place, Session, Startup
from pipediag.session.events import EDITED

from ..golden import advised, agrees
from ..made import FLAT, but, climbing, inside, make, waits

#: The first launch of a process also imports modules.
FIRST = Startup(9.0, launch=2.0, ready=8.0)
LATER = Startup(4.0, launch=1.0, ready=3.0, shutdown=1.0)


def told(session: Session) -> EpochStart:
    start = epoch_start(LadderView(session))
    assert start is not None
    return start


def run(*startups: Startup, length: int | None = 100, **options: object) -> Session:
    return make(FLAT, noise=0.0, length=length, startups=startups, **options)  # type: ignore[arg-type]


def cost(session: Session) -> float:
    return told(session).seconds.value


class TestCost:
    def test_the_first_launch_of_a_process_does_not_count(self) -> None:
        start = told(run(FIRST, LATER, LATER))
        assert start.seconds.value == pytest.approx(5.0), "ending the workers is part of it"
        assert (start.starts, start.shutdown, start.usual) == (2, 1.0, LATER)
        assert start.launching == 4.0, "without their first batch"

    @pytest.mark.parametrize(
        "worker_ms, iterable, launching",
        [(10.0, False, 4.99), (400.0, False, 4.6), (2000.0, False, 4.0), (10.0, True, 4.0)],
    )
    def test_kept_workers_open_their_files_only_once(self, worker_ms: float, iterable: bool, launching: float) -> None:
        """Their first batch takes 1 s of the start of an epoch; a stream is opened again for each."""
        session = run(FIRST, LATER, LATER, evidence=waits(0.0, worker_ms=worker_ms))
        assert told(but(session, loader__iterable=iterable)).launching == pytest.approx(launching)

    def test_kept_workers_wait_for_the_sampler_too(self) -> None:
        """Sorting a data set for 3 s before each epoch is no launch of workers."""
        start = told(VERDICTS["startup"]["the sampler takes most of it"])
        assert start.seconds.value == pytest.approx(4.0) and start.launching == pytest.approx(1.0)

    def test_nor_that_of_another_pass(self) -> None:
        again = [replace(one, attempt=2) for one in (FIRST, LATER)]
        assert told(run(FIRST, LATER, *again)).starts == 2

    def test_the_interval_comes_from_the_spread_of_the_launches(self) -> None:
        alike = told(run(FIRST, *[LATER] * 3)).seconds
        apart = told(run(FIRST, *[replace(LATER, seconds=s) for s in (3.0, 4.0, 5.5)])).seconds
        assert 0 < apart.low < alike.low < 5.0 < alike.high < apart.high

    def test_one_launch_after_the_first_has_a_wide_interval(self) -> None:
        one, two = (told(run(FIRST, *[LATER] * n)).seconds for n in (1, 2))
        assert one.low < two.low and two.high < one.high and one.value == pytest.approx(5.0)

    def test_the_first_launch_alone_is_a_bound(self) -> None:
        start = told(run(FIRST))
        assert (start.seconds.low, start.seconds.value, start.seconds.high, start.starts) == (0.0, 9.0, 9.0, 0)

    def test_the_least_of_several_first_launches_is_one_too(self) -> None:
        """Each pass over a short script has one."""
        found = told(run(FIRST, replace(FIRST, seconds=8.5, attempt=2)))
        assert (found.seconds.high, found.starts) == (8.5, 0)

    @pytest.mark.parametrize("place", range(1, 4))
    def test_a_launch_that_was_stopped_is_left_out(self, place: int) -> None:
        """The process was stopped for 20 s."""
        startups = [FIRST, LATER, LATER, LATER]
        startups[place] = replace(startups[place], seconds=startups[place].seconds + 20)
        found = told(run(*startups))
        assert (found.starts, found.usual) == (2, LATER) and found.seconds.value == pytest.approx(5.0)

    def test_a_first_launch_that_was_stopped_does_not_matter(self) -> None:
        assert cost(run(replace(FIRST, seconds=29.0), LATER, LATER)) == pytest.approx(5.0)

    def test_the_only_later_launch_was_stopped(self) -> None:
        """The first one tells that this is not what it takes."""
        found = told(run(FIRST, replace(LATER, seconds=24.0)))
        assert found.starts == 0 and found.seconds.low == 0.0 and found.seconds.high == 10.0

    def test_persistent_workers_begin_later_epochs(self) -> None:
        again = Startup(0.5, renewed=True)
        assert cost(run(FIRST, again, again, persistent=True)) == pytest.approx(0.5)
        assert epoch_start(LadderView(run(FIRST, persistent=True))) is None, "no later epoch was seen"

    def test_without_workers_nothing_starts(self) -> None:
        assert epoch_start(LadderView(run(FIRST, LATER, workers=0))) is None

    def test_spread_over_the_epoch(self) -> None:
        assert told(run(FIRST, LATER, LATER, length=50)).per_step.value == pytest.approx(100.0)
        assert told(run(FIRST, LATER, LATER, length=None)).per_step is None


class TestFirstBatch:
    """A loop that waits for its workers gets a whole round of them at once after a start."""

    def start(self, waited: float) -> float:
        """The seconds of a start with a first batch of 1 s, in a loop that waits ``waited`` of 100 ms for 4 workers."""
        return cost(run(FIRST, LATER, LATER, evidence=waits(waited)))

    def test_spread_over_the_batches_that_the_loop_takes(self) -> None:
        """It leaves each epoch of 100 batches after 20."""
        session = but(run(FIRST, LATER, LATER), loader__left_after=20)
        assert told(session).per_step.value == pytest.approx(250.0)

    def test_what_the_loop_waits_anyway_is_no_part_of_it(self) -> None:
        assert self.start(0.0) == pytest.approx(5.0)
        assert self.start(50.0) == pytest.approx(5.0 - 4 * 0.05)

    def test_launching_always_is(self) -> None:
        slow = make({name: 50 * ms for name, ms in FLAT.items()}, noise=0.0, startups=[FIRST, LATER, LATER])
        for window in slow.windows:
            window.evidence = {"wait_ms": 4000.0}
        assert cost(slow) == pytest.approx(4.0)


class TestMore:
    """Which analysis wants to see another start, and how much of an epoch it may take."""

    def test_until_three_are_known(self) -> None:
        assert wants_start(run(FIRST)) == pytest.approx(0.09 / 0.19)
        assert wants_start(run(FIRST, LATER)) > 0 and wants_start(run(FIRST, LATER, LATER)) > 0
        assert wants_start(run(FIRST, *[LATER] * 3)) == 0.0

    def test_disturbed_ones_are_replaced_but_not_forever(self) -> None:
        stopped = replace(LATER, seconds=30.0)
        assert wants_start(run(FIRST, stopped, LATER, LATER)) > 0
        assert wants_start(run(FIRST, *[stopped] * 5)) == 0.0

    @pytest.mark.parametrize(
        "session",
        [
            run(FIRST, length=10_000),
            run(FIRST, length=None),
            run(FIRST, workers=0),
            run(),
            make({}, startups=[FIRST]),
        ],
        ids=["long epochs", "unknown length", "no workers", "no launch", "no steps"],
    )
    def test_not(self, session: Session) -> None:
        assert wants_start(session) == 0.0

    def test_persistent_workers_make_a_first_batch(self) -> None:
        assert wants_start(run(FIRST, length=50, persistent=True)) == pytest.approx(20 / 120)
        assert wants_start(run(FIRST, length=500, persistent=True)) == 0.0
        assert wants_start(run(FIRST, *[Startup(1.0, renewed=True)] * 3, length=50, persistent=True)) == 0.0


def edited() -> Session:
    session = run(FIRST, LATER, LATER, length=10)
    session.warn(EDITED, "between epochs the script changes mosaic")
    return session


def for_every_batch(persistent: bool) -> Session:
    """The loader has 100 batches; the workers start, or prefetch, for each."""
    again = replace(LATER, renewed=persistent)
    session = make(climbing(), noise=0.0, length=100, startups=[FIRST, again, again, again], persistent=persistent)
    return but(session, loader__left_after=1)


SORTS, DISAGREES = replace(LATER, sampler=3.0, shutdown=0.0), Startup(5.0, launch=1.0, ready=5.001)
TRANSFORMS: dict[str, Any] = {"noise": 0.0, "startups": [FIRST]}
#: Sessions by their bottleneck; golden/amortised.txt holds what is said of the costs between their steps.
VERDICTS: dict[str, dict[str, Session]] = {
    "startup": {
        "certain from two launches on": run(FIRST, LATER, LATER),
        "its parts": run(FIRST, LATER, LATER, length=10),
        "its parts are not known": run(Startup(5.0), Startup(5.0), length=10),
        "ending the workers was not seen": run(FIRST, *[replace(LATER, shutdown=0.0)] * 2),
        "clocks that disagree a little": run(DISAGREES, DISAGREES, DISAGREES),
        "kept workers wait for the sampler too: sorting a data set is no launch": run(FIRST, SORTS, SORTS, SORTS),
        "the sampler takes most of it": but(
            run(FIRST, SORTS, SORTS, SORTS), loader__sampler=Place("ByLength", "train.py:7")
        ),
        "kept workers would not see what the script changes": edited(),
        "the workers are kept already, and starting them is paid once": run(
            FIRST, *[Startup(4.0, renewed=True)] * 2, persistent=True
        ),
        "a new iterator for every batch": for_every_batch(persistent=False),
        "the same, with workers that are kept": for_every_batch(persistent=True),
    },
    "none": {
        "one launch is said but not called certain": run(Startup(20.0, launch=19.0, ready=19.5)),
        "one of two launches was disturbed": run(
            FIRST, replace(LATER, seconds=2.0), replace(LATER, seconds=5.5), length=1000
        ),
        "it is open whether it costs more than the gate: no gain is promised": run(
            FIRST, replace(LATER, seconds=3.5), replace(LATER, seconds=3.8), length=1000
        ),
        "kept workers begin quickly": run(FIRST, *[Startup(0.01, renewed=True)] * 2, persistent=True),
    },
    "transform": {
        "one launch may be a larger stage": make(climbing(raw=30.0), length=100, **TRANSFORMS),
        "9 of 90 ms are less than the transforms": make(climbing(raw=30.0), length=1000, **TRANSFORMS),
    },
}


def test_what_is_said() -> None:
    lines = []
    for bottleneck, sessions in VERDICTS.items():
        for name, session in sessions.items():
            found = diagnose_session(session)
            one, costs = found.verdict, [one for one in found.recommendations if one.stage == "startup"]
            assert one.bottleneck == bottleneck, name
            warned = [f"    {warning.message}" for warning in found.warnings if warning.code == "start-seen-once"]
            links = [f"    of {cost.stage}: {', '.join(cost.links) or 'all'}" for cost in found.amortised]
            certain = "certain" if one.certain else f"not certain: {one.uncertain}"
            lines += [f"{bottleneck}: {name}", f"    {certain}", f"    {one.sentence}", *links, *warned]
            lines += [*(line for cost in costs for line in advised(cost)), ""]
    agrees(Path(__file__).parent / "golden" / "amortised.txt", "\n".join(lines))


def test_shares_with_costs_between_the_steps() -> None:
    """A step of 100 ms, 20 of them for data, and 60 (40 to 90) more between the steps: 80 of 160."""
    share = Interval(0.2, 0.1, 0.4)
    assert with_amortised(share, 100.0, []) == share
    found = with_amortised(share, 100.0, [Stage("startup", Interval(60.0, 40.0, 90.0), 0.0)])
    assert found.value == 0.5
    assert found.low == pytest.approx(0.5 - math.hypot(10 / 160, 0.5 - 60 / 140))
    assert found.high == pytest.approx(0.5 + math.hypot(20 / 160, 110 / 190 - 0.5))


def test_costs_between_the_steps_hold_for_another_run() -> None:
    """Beside the spread of the launches themselves, a start may take a quarter more or less."""
    session = run(*[Startup(10.0, launch=1.0, ready=9.0)] * 3)
    each, (found,) = told(session).per_step, amortised(LadderView(session))
    assert found.ms == each.blurred(0.25 * each.value)


def test_the_screen() -> None:
    """100 steps of 100 ms after a start of 5 s: a third of the time."""
    found = summarise(diagnose_session(run(FIRST, LATER, LATER)))
    assert found.headline == "Data costs your training 33 % of every step"
    assert [(one.name, round(one.ms), round(one.share, 2)) for one in found.causes] == [
        ("starting the workers", 50, 0.33)
    ]
    assert found.rates[0].steps_per_s == pytest.approx(1000 / 150)


def test_beside_a_costlier_stage() -> None:
    """The shares are of a step with its part of the start: 30 and 10 of 92 ms."""
    start = replace(LATER, seconds=0.9, ready=0.5, shutdown=0.1)
    session = make(climbing(raw=30.0), noise=0.0, length=100, startups=[FIRST, start, start])
    found = summarise(diagnose_session(session))
    assert [(one.name, round(one.ms)) for one in found.causes] == [("transforms", 30), ("starting the workers", 10)]
    assert sum(one.share for one in found.causes) == pytest.approx(40 / 92, rel=0.02)


def test_other_changes_leave_it() -> None:
    """With free transforms a step of 82 ms takes 51, and of 172 ms with the start 141."""

    def rewrite(*startups: Startup) -> Recommendation:
        session = make(climbing(raw=30.0), noise=0.0, length=100, inside=inside(30.0), startups=startups)
        return next(one for one in diagnose_session(session).recommendations if one.id == "rewrite")

    start = replace(LATER, seconds=9.0, ready=8.9, shutdown=0.0)
    alone, beside = rewrite(), rewrite(FIRST, start, start)
    assert alone.predicted is not None and beside.predicted is not None
    step = 81.0
    left = step / alone.predicted.value
    assert beside.predicted.value == pytest.approx((step + 90) / (left + 90), rel=0.02)


def validating(*starts: OtherStart, ladder: dict[str, float] = FLAT) -> Session:
    session = make(ladder, noise=0.0)
    session.other_starts = [*starts]
    return session


def uses(
    count: int = 5, every: int = 10, seconds: float = 0.5, where: str = "eval.py:7", attempt: int = 1
) -> list[OtherStart]:
    """Uses every ``every`` steps, the first of which takes three seconds longer."""
    return [
        OtherStart(where, 5 + every * n, seconds + 3.0 * (n == 0), 0.8 * seconds, 2, False, attempt)
        for n in range(count)
    ]


class TestCostOfOtherLoaders:
    def test_spread_over_the_steps_between_them(self) -> None:
        (one,) = other_loaders(LadderView(validating(*uses())))
        assert (one.where, one.every, one.workers, one.persistent) == ("eval.py:7", 10.0, 2, False)
        assert one.seconds.value == pytest.approx(0.5), "the first of a process does not count"
        assert (one.per_step.value, one.kept) == (pytest.approx(50.0), pytest.approx(0.4))
        assert 0 < one.per_step.low < 50.0 < one.per_step.high

    def test_one_use_says_nothing_about_how_often(self) -> None:
        assert other_loaders(LadderView(validating(*uses(1)))) == []
        assert other_loaders(LadderView(validating(*uses(1), *uses(1, attempt=2)))) == [], "nor in another pass"

    def test_two_uses_in_one_step_are_not_apart(self) -> None:
        assert other_loaders(LadderView(validating(*uses(3, every=0)))) == []

    def test_a_use_that_was_stopped_is_left_out(self) -> None:
        starts = uses()
        starts[2].seconds += 20.0
        (one,) = other_loaders(LadderView(validating(*starts)))
        assert one.seconds.value == pytest.approx(0.5)

    def test_each_place_is_a_loader_of_its_own(self) -> None:
        mixed = [one for pair in zip(uses(), uses(every=20, where="probe.py:3"), strict=True) for one in pair]
        found = {one.where: one.per_step.value for one in other_loaders(LadderView(validating(*mixed)))}
        assert found == {"eval.py:7": pytest.approx(50.0), "probe.py:3": pytest.approx(25.0)}

    def test_the_own_workers_go_on_meanwhile(self) -> None:
        """With 130 ms for a batch of each of the four, a step would take 130 ms without the other loader."""
        session = validating(*uses())
        for window in session.windows:
            window.evidence = {"worker_ms": 520.0}
        (one,) = other_loaders(LadderView(session))
        assert one.per_step.value == pytest.approx(20.0)


class TestVerdictOnOtherLoaders:
    def test_a_stage_of_its_own(self) -> None:
        found = diagnose_session(validating(*uses()))
        assert [(one.stage, one.culprit) for one in found.amortised] == [
            ("other loaders", Place("DataLoader", "eval.py:7"))
        ]
        assert found.amortised[0].share == pytest.approx(1 / 3)
        assert found.verdict.bottleneck == "startup"
        assert found.verdict.culprit == Place("DataLoader", "eval.py:7")
        assert found.verdict.sentence == (
            "The loop starts another loader every 10 steps, at eval.py:7, and waits 0.5 s for it and its batches each "
            "time: 50 ms a step. persistent_workers=True there starts its workers only once."
        )
        assert [one.id for one in found.recommendations] == ["other-loaders"]

    def test_on_the_screen(self) -> None:
        found = summarise(diagnose_session(validating(*uses())))
        assert [(one.name, one.where, round(one.share, 2)) for one in found.causes] == [
            ("starting another loader", "eval.py:7", 0.33)
        ]
        assert found.headline == "Data costs your training 33 % of every step"
        assert found.rates[0].steps_per_s == pytest.approx(1000 / 150)

    def test_beside_a_costlier_stage(self) -> None:
        found = diagnose_session(validating(*uses(), ladder=climbing(raw=100.0)))
        assert found.verdict.bottleneck == "transform"
        assert [one.name for one in summarise(found).causes] == ["transforms", "starting another loader"]

    def test_below_the_gate(self) -> None:
        """5 ms of 105 are 4.8 %."""
        found = diagnose_session(validating(*uses(seconds=0.05)))
        assert found.amortised == [] and found.verdict.bottleneck == "none"

    def test_just_above_the_gate(self) -> None:
        """99 ms in every 17 steps of 100 ms: 5.5 %."""
        found = diagnose_session(validating(*uses(20, every=17, seconds=0.099)))
        assert found.amortised[0].share == pytest.approx(0.055, abs=0.001)
        assert found.verdict.bottleneck == "startup"

    def test_all_of_it_is_in_the_report(self) -> None:
        told = evidence_lines(diagnose_session(validating(*uses(seconds=0.05))))
        assert "another loader is started at eval.py:7 every 10 steps and takes the loop 0.05 s: 5 ms a step" in told
