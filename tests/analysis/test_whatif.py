"""The model behind the predictions, on sessions whose arithmetic can be done by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.numbers.intervals import Interval, exactly
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.numbers.loop_and_workers import SAVED, Work, saving
from pipediag.analysis.whatif import (
    IN_A_SLOT,
    LAUNCHING,
    MOST_WORKERS,
    PER_CORE,
    RECORDING,
    SCALING,
    Change,
    WhatIf,
    transfer_matters,
    what_if,
)
from pipediag.session import RUNGS, Inside

from ..made import FLAT, blocks, climbing, inside, make, waits, without

#: 50 ms of compute, 2 of transfer, 1 of hand-off; the workers give a batch every 120 ms.
STARVED = {**climbing(host=2.0, worker=1.0, sample=0.5), "raw": 90.0, "warm": 120.0, "baseline": 120.0}
#: What a worker does for one of these batches: 400 ms, of which 40 collating.
BUSY = {"baseline": {"worker_ms": 400.0, "worker_cpu": 1.0, "process_cpu": 1.0}, "sample": {"worker_ms": 40.0}}


def model(
    ladder: Mapping[str, float] = STARVED,
    seen: Mapping[str, Mapping[str, float]] = BUSY,
    within: Inside | None = None,
    noise: float = 0.0,
    **more: Any,
) -> WhatIf:
    """The model of a chain of two links, 3 and 4 ms a sample, and 2 ms of loading: shares of 1/3, 4/9 and 2/9."""
    found = inside(3.0, 4.0, load=2.0) if within is None else within
    made = what_if(LadderView(make(ladder, noise=noise, evidence=seen, inside=found, **more)))
    assert made is not None
    return made


def near(value: float, low: float | None = None, high: float | None = None) -> Interval:
    """An interval up to rounding; equal windows give no width."""
    ends = value if low is None else low, value if high is None else high
    return Interval(*(pytest.approx(end, abs=1e-9) for end in (value, *ends)))


def beside(wait_ms: float) -> dict[str, dict[str, float]]:
    """:data:`BUSY` with a wait; the rest of the step beyond the rungs is contention."""
    return {**BUSY, "baseline": {**BUSY["baseline"], "wait_ms": wait_ms}}


ALONE = without(STARVED, "worker")
#: Without worker processes.
ITSELF: dict[str, Any] = {"ladder": ALONE, "workers": 0, "absent": ["worker"]}


class TestReading:
    """The numbers that the model takes from the ladder."""

    def test_two_sides(self) -> None:
        found = model()
        assert (found.base, found.compute, found.loop, found.supply) == (120.0, 50.0, 53.0, 120.0)
        assert found.waits and (found.transfer, found.handoff) == (near(2.0), near(1.0))
        assert found.ceiling.value == pytest.approx(2.4)

    @pytest.mark.parametrize(
        "given, loop, supply, waits",
        [
            ({"ladder": {**FLAT, "supply": 40.0}}, 100.0, 40.0, False),
            ({"ladder": FLAT, "seen": {"baseline": {"worker_ms": 100.0}}}, 100.0, 25.0, False),
            ({"ladder": FLAT, "seen": {}, "within": Inside()}, 100.0, 0.0, False),
            (ITSELF, 52.0, 68.0, True),
            ({**ITSELF, "ladder": {**ALONE, "supply": 20.0}}, 52.0, 68.0, True),
            ({"ladder": {**climbing(raw=30.0), "supply": 55.0}, "seen": beside(5.8)}, 50.4, 55.0, False),
        ],
        ids=[
            "a loop that does not wait is supplied as the loader alone can",
            "or by the time of its workers",
            "or in time, if nothing else is known",
            "without workers a step is the sum",
            "without workers it waits for what it does itself",
            "workers in the way are not late: the loader alone would keep up with the slowed loop",
        ],
    )
    def test_loop_and_supply(self, given: dict[str, Any], loop: float, supply: float, waits: bool) -> None:
        found = model(**given)
        assert (found.loop, found.supply, found.waits) == (pytest.approx(loop), supply, waits)
        if not found.workers:
            assert found.step(Change()) == exactly(120.0)

    def test_batches_that_lie_ready_are_not_late(self) -> None:
        """The loop waits 30 ms, 10 of them under ``worker``, for batches that a worker makes in 0.8 ms."""
        seen = waits(30.0, 10.0, worker_ms=0.8)
        found = model({"device": 6.0, "worker": 16.0, "baseline": 36.0}, seen, workers=2)
        assert (found.waits, found.supply) == (False, 0.4)
        assert (found.loop, found.handoff) == (pytest.approx(35.2), near(29.2))

    @pytest.mark.parametrize("ladder", [{"baseline": 100.0}, without(FLAT, "baseline"), {}])
    def test_too_little(self, ladder: dict[str, float]) -> None:
        assert what_if(LadderView(make(ladder))) is None

    def test_one_window_of_each_rung_is_enough_for_a_guess(self) -> None:
        one, many = (what_if(LadderView(make(STARVED, rounds=rounds, noise=0.0))) for rounds in (1, 5))
        assert one.ceiling.value == pytest.approx(many.ceiling.value)
        assert one.ceiling.low < 0.99 * many.ceiling.low < 1.01 * many.ceiling.high < one.ceiling.high

    def test_a_rung_with_one_window_counts_as_certain_as_such_windows_are(self) -> None:
        session = make(STARVED, noise=0.0)
        session.windows = [w for w in session.windows if w.rung != "host" or w.round == 0]
        found = what_if(LadderView(session))
        assert found.transfer.value == pytest.approx(2.0)
        assert -5.0 < found.transfer.low < 0.0 < 4.0 < found.transfer.high < 10.0

    def test_nothing_by_what_was_only_observed(self) -> None:
        """The loop's speed without waiting was not measured."""
        assert what_if(LadderView(make({}, observed=blocks(9, 100.0, 40.0)))) is None

    @pytest.mark.parametrize(
        "ladder, wait, lost",
        [
            (STARVED, 57.0, 10.0),  # of 120 ms, with 53 when batches lie ready
            (STARVED, 66.0, 0.0),  # within what the instrument tells
            ({**FLAT, "baseline": 103.0, "supply": 40.0}, 0.0, 3.0),  # no more than the baseline shows
        ],
    )
    def test_what_is_lost_to_the_workers_presence(self, ladder: dict[str, float], wait: float, lost: float) -> None:
        assert model(ladder, beside(wait)).lost.value == pytest.approx(lost)

    def test_cores(self) -> None:
        seen = {"baseline": {"worker_ms": 1.0, "process_cpu": 0.5, "cores_used": 3.0, "cores_busy": 5.0}}
        assert model(seen=seen, environment={"cores": 8, "cgroup_quota": 8}).taken == 0.5, "others take none of these"
        found = model(seen={**seen, "worker": {"process_cpu": 1.5}}, environment={"cores": 8})
        assert (found.taken, found.free) == (3.5, 4.5)  # at full speed 1.5 of its own, and 2 of others
        unknown = model(environment={"python": "3"})
        assert math.isinf(unknown.free) and unknown.workers_wanted() is None


class TestWork:
    def test_divided_by_shares(self) -> None:
        assert model().work == Work(400.0, 400.0, 40.0, 80.0, 0.0, (120.0, 160.0))

    def test_waiting_for_a_core_is_no_work(self) -> None:
        seen = {"baseline": {"worker_ms": 400.0, "worker_cpu": 0.6, "worker_queued": 0.25}}
        assert model(seen=seen).work == Work(
            300.0, 240.0, 0.0, pytest.approx(200 / 3), 0.0, (100.0, pytest.approx(400 / 3))
        )

    def test_copies_of_cached_samples_are_no_collating(self) -> None:
        seen = {**BUSY, "sample": {"worker_ms": 50.0, "copy_ms": 20.0}}
        found = model(seen=seen).work
        assert found is not None and found.collate == 30.0

    def test_by_the_time_for_a_sample(self) -> None:
        """Without the workers' own figures: 9 ms times 32."""
        assert model(seen={}).work == Work(288.0, 288.0, 0.0, 64.0, 0.0, (96.0, 128.0))

    def test_nothing_inside(self) -> None:
        assert model(within=Inside()).work == Work(400.0, 400.0, 40.0, 360.0)
        assert model(seen={}, within=Inside()).work is None

    def test_code_between_the_links(self) -> None:
        found = model(within=inside(3.0, 4.0, load=2.0, between=1.0)).work
        assert (found.between, found.load, sum(found.links)) == (36.0, pytest.approx(72.0), pytest.approx(252.0))
        assert found.samples == 360.0


LIMITS = {**STARVED, "raw": 53.0, "warm": 53.0, "baseline": 53.0, "supply": 9.0}


class TestStep:
    @pytest.mark.parametrize(
        "change, step",
        [
            (Change(), exactly(120.0)),
            (Change(work=exactly(100.0)), exactly(90.0)),  # supplied in proportion,
            (Change(work=exactly(300.0)), exactly(53.0)),  # until the loop limits
            (Change(work=saving(100.0)), near(90.0, 120 * (1 - SAVED.high / 4), 120 * (1 - SAVED.low / 4))),
            (Change(work=exactly(-100.0)), exactly(150.0)),
            (Change(loop=exactly(3.0)), exactly(120.0)),  # nothing while it waits
            (Change(work=exactly(400.0), loop=exactly(10.0)), exactly(50.0)),  # never below compute,
            (
                Change(work=exactly(400.0), loop=exactly(3.0), compute=exactly(20.0)),
                exactly(30.0),
            ),  # unless that changes
            # Work on the device: at worst it lengthens the step, at best the device would have been idle.
            (Change(work=exactly(400.0), device=Interval(5.0, 1.0, 20.0)), Interval(58.0, 53.0, 73.0)),
            (Change(work=exactly(400.0), device=Interval(70.0, 60.0, 80.0)), Interval(123.0, 60.0, 133.0)),
            (Change(workers=6), near(80.0, 80.0, 120 / (1 + SCALING * 0.5))),
            (Change(workers=2), exactly(240.0)),  # fewer scale exactly
            (Change(supply=Interval(0.9, 0.8, 1.0)), Interval(108.0, 96.0, 120.0)),
        ],
    )
    def test_of_a_loop_that_waits(self, change: Change, step: Interval) -> None:
        assert model().step(change) == step

    @pytest.mark.parametrize(
        "given, change, step",
        [
            ({"ladder": LIMITS, "seen": {}}, Change(loop=exactly(2.0)), exactly(51.0)),
            # Three cores beside the training process do 400 ms of CPU time every 133 ms.
            ({"environment": {"cores": 4}}, Change(workers=64), exactly(120.0)),
            (ITSELF, Change(workers=4), near(100.0, 100.0, 100 / SCALING)),
            (ITSELF, Change(workers=12), exactly(52.0)),
            (ITSELF, Change(work=exactly(200.0)), exactly(86.0)),
            # Work that is not known cannot be taken away.
            ({"seen": {}, "within": Inside()}, Change(work=exactly(100.0), workers=9), exactly(120.0)),
        ],
    )
    def test_of_others(self, given: dict[str, Any], change: Change, step: Interval) -> None:
        assert model(**given).step(change) == step

    def test_more_cores(self) -> None:
        found = model(environment={"cores": 3})  # two for the workers: 400 / 2 ms a batch is what limits
        assert found.step(Change(workers=8, cores=5.0)).value == pytest.approx(60.0)

    def test_workers_do_less_and_are_less_in_the_way(self) -> None:
        found = model({**climbing(raw=30.0), "supply": 55.0}, beside(5.8))
        changes = (Change(), Change(work=exactly(200.0)), Change(workers=2))
        assert [found.step(one).value for one in changes] == pytest.approx([50.4 + 24.8, 50.4 + 12.4, 110.0])


class TestFullCores:
    """Four workers and the training process share three cores: 53 + 280 ms of CPU time for each step."""

    SEEN: ClassVar[dict[str, dict[str, float]]] = {
        "baseline": {"worker_ms": 400.0, "worker_cpu": 0.7, "worker_queued": 0.3, "process_cpu": 0.4},
        "worker": {"process_cpu": 1.0},
    }

    def found(self, cores: int = 3, **more: Any) -> WhatIf:
        return model(seen={**self.SEEN, **more}, environment={"cores": cores})

    def test_the_present(self) -> None:
        found = self.found()
        assert (found.own, found.spins) == (53.0, 0.0)
        assert found.step(Change()).value == pytest.approx(120.0)

    def test_less_work_leaves_what_the_training_process_computes(self) -> None:
        """Half of the workers' 280 ms is gone, but only 140 of 333 ms."""
        assert self.found().step(Change(work=exactly(140.0))).value == pytest.approx(120 * (333 - 140) / 333)

    def test_on_more_cores_it_is_their_share_of_the_workers_time(self) -> None:
        assert self.found(cores=16).step(Change(work=exactly(140.0))).value == pytest.approx(60.0)

    def test_more_workers_gain_nothing(self) -> None:
        assert self.found().step(Change(workers=12)).value == pytest.approx(120.0)
        assert self.found().workers_wanted() == 4

    def test_more_cores(self) -> None:
        """Then the workers' number limits: a batch every 70 ms instead of 111."""
        assert self.found().step(Change(cores=6.0)).value == pytest.approx(120 * 70 / 111)

    def test_other_processes_keep_theirs(self) -> None:
        others = {**self.SEEN["baseline"], "cores_busy": 4.0, "cores_used": 3.0}
        found = self.found(cores=4, baseline=others)
        assert found.others == 1.0
        assert found.step(Change(work=exactly(140.0))).value == pytest.approx(120 * (333 - 140) / 333)

    def test_a_training_process_that_spins_while_it_waits(self) -> None:
        """It uses a core throughout: two are left for the workers, whatever they do."""
        found = self.found(baseline={**self.SEEN["baseline"], "process_cpu": 1.0})
        assert found.spins == pytest.approx(1.0)
        assert found.step(Change(work=exactly(140.0))).value == pytest.approx(120 / 2)

    def test_workers_beside_a_training_that_fills_the_cores(self) -> None:
        """Two threads of 52 ms, and 68 ms to make a batch: two cores need 86 ms for that, at best."""
        seen = {
            "baseline": {"worker_ms": 68.0, "worker_cpu": 1.0, "process_cpu": 2.0},
            "host": {"process_cpu": 2.0},
        }
        found = model(without(STARVED, "worker"), seen, workers=0, absent=["worker"], environment={"cores": 2})
        gain = found.faster(Change(workers=2))
        assert gain.value == pytest.approx(120 / 86)
        assert gain.low == pytest.approx(120 / 86 * SCALING) and gain.low < 1


class TestSpeedup:
    def test_exact(self) -> None:
        assert model().faster(Change(work=exactly(100.0))) == Interval(*[pytest.approx(120 / 90)] * 3)

    def test_no_more_than_the_ceiling(self) -> None:
        assert model().faster(Change(work=exactly(400.0), loop=exactly(50.0))) == Interval(*[pytest.approx(2.4)] * 3)

    def test_the_models_own_step_may_exceed_it(self) -> None:
        found = model({**STARVED, "raw": 53.0, "warm": 53.0, "baseline": 53.0, "supply": 9.0}, {})
        assert found.faster(Change(compute=exactly(26.5))).value == pytest.approx(2.0)

    def test_nothing_gained_is_certain(self) -> None:
        assert model(noise=0.05).faster(Change()) == exactly(1.0)

    def test_all_gained_is_as_uncertain_as_the_ceiling(self) -> None:
        found = model({**STARVED, "host": 50.0, "worker": 50.0}, noise=0.05)
        gain = found.faster(Change(work=exactly(400.0), loop=exactly(found.loop)))
        assert gain.low == pytest.approx(found.ceiling.low)
        assert gain.high == pytest.approx(found.ceiling.high)

    def test_in_between_in_proportion(self) -> None:
        found = model(noise=0.05)
        gain = found.faster(Change(work=exactly(100.0)))
        part = math.log(gain.value) / math.log(found.ceiling.value)
        assert math.log(gain.value / gain.low) == pytest.approx(
            part * math.log(found.ceiling.value / found.ceiling.low)
        )

    def test_a_step_that_may_vanish(self) -> None:
        assert math.isinf(model().speedup(120.0, Interval(60.0, 0.0, 80.0), capped=False).high)

    @given(
        st.dictionaries(st.sampled_from(RUNGS), st.floats(0.01, 500), min_size=2),
        st.floats(0, 2000),
        st.floats(-50, 50),
        st.integers(0, 70),
        st.integers(0, 8),
        st.integers(0, 10),
    )
    def test_of_anything(
        self, ladder: dict[str, float], work: float, loop: float, then: int, workers: int, seed: int
    ) -> None:
        """Whatever was measured, a prediction is an interval around its value, and not above the ceiling."""
        session = make(ladder, noise=0.05, seed=seed, workers=workers, evidence=BUSY, inside=inside(3.0, 4.0))
        found = what_if(LadderView(session))
        if found is None:
            return
        gain = found.faster(Change(work=saving(work), loop=exactly(loop), workers=then or None))
        assert 0 < gain.low <= gain.value <= gain.high <= found.ceiling.high


class TestMoved:
    """Transforms on the device."""

    def test_the_arithmetic(self) -> None:
        """160 ms of a transform and 28 of 40 ms of collating go, neither certainly; recording is added."""
        change = model().moved([1], [1], device_copy_ms=0.5)
        recording = 32 * RECORDING.value
        assert change.work.value == pytest.approx(160 + 28 - recording)
        low = math.hypot((1 - SAVED.low) * 160, 32 * (RECORDING.high - RECORDING.value), 28)
        assert change.work.low == pytest.approx(160 + 28 - recording - low)
        assert change.device.value == pytest.approx(LAUNCHING.value + 0.5)
        assert change.device.high == pytest.approx(
            LAUNCHING.value + 0.5 + math.hypot(LAUNCHING.high - LAUNCHING.value, 0.5)
        )
        assert change.loop == near(3.0, 0.0, 3.0)  # copies and hand-off are hidden, where nothing is too busy

    def test_batches_come_as_fast_as_they_are_made(self) -> None:
        """Four workers make one in 100 ms; one comes every 120."""
        assert model().moved([1], [1], None).supply == Interval(100 / 120, 100 / 120, 1.0)

    def test_nothing_is_known_of_the_hand_off_where_more_is_made_than_comes(self) -> None:
        seen = {**BUSY, "baseline": {"worker_ms": 600.0, "worker_cpu": 1.0, "process_cpu": 1.0}}
        assert model(seen=seen).moved([1], [1], None).supply == Interval(1.0, 1.0, 1.0)

    def test_without_workers(self) -> None:
        found = model(without(STARVED, "worker"), workers=0, absent=["worker"])
        assert found.moved([1], [1], None).supply == Interval(1.0, 1.0, 1.0)

    def test_transforms_that_take_long_to_be_recorded(self) -> None:
        one, many = (model().moved([1], [1], None, recorded=recorded).work.value for recorded in (1, 15))
        assert one == model().moved([1], [1], None).work.value
        assert many == pytest.approx(one - 14 * 32 * RECORDING.value)

    def test_what_lies_between_the_transforms_goes_with_them(self) -> None:
        found = inside(3.0, 4.0, load=2.0)
        found.whole.wall_ms += 1.0
        found.between.wall_ms = 1.0
        half, all_of_it = (model(within=found).moved(links, links, None).work.value for links in ([1], [0, 1]))
        share = 360 / found.whole.wall_ms
        recording, collating = 32 * RECORDING.value, 28.0
        assert half == pytest.approx(4.0 * share + 0.5 * share + collating - recording)
        assert all_of_it == pytest.approx(7.0 * share + 1.0 * share + collating - 2 * recording)

    def test_what_only_may_move(self) -> None:
        certain = model().moved([0, 1], [0, 1], None)
        change = model().moved([0, 1], [1], None)
        assert change.work.value == certain.work.value
        assert change.work.low < certain.work.low

    def test_end_to_end(self) -> None:
        found = model()
        left = 400 - (160 + 28 - 32 * RECORDING.value)
        supply = 100 * left / 400  # beside a loop of 51
        assert found.faster(found.moved([1], [1], None)).value == pytest.approx(120 / supply)

    def test_without_a_transfer(self) -> None:
        found = model(without(STARVED, "host"), unavailable={"host": "too large"})
        assert found.moved([1], [1], None).loop == near(3.0, 0.0, 3.0), "the hand-off includes it"

    def test_collating_fewer_bytes(self) -> None:
        """The remaining 12 ms of collating scale with the bytes."""
        alike, quarter = model().moved([1], [1], None), model().moved([1], [1], None, sent=0.25)
        assert quarter.work.value == pytest.approx(alike.work.value + IN_A_SLOT * 30)

    def test_more_bytes_are_not_counted(self) -> None:
        assert model().moved([1], [1], None, sent=4.0) == model().moved([1], [1], None)


class TestLighter:
    def test_half_the_bytes(self) -> None:
        change = model().lighter(0.5)
        assert change.loop == near(1.0, 1.0, 1.5)  # half of the transfer, and at best of the hand-off
        assert change.work == Interval(0.0, 0.0, 20.0)  # at best half of the collating

    def test_nothing_known(self) -> None:
        found = model({"device": 50.0, "baseline": 120.0}, {}, Inside())
        assert found.lighter(0.5) == Change()

    def test_a_transfer_that_is_hidden(self) -> None:
        assert model({**STARVED, "host": 49.0}).lighter(0.5).loop.value == 0.0


class TestHowMany:
    @pytest.mark.parametrize(
        "given, worker, cores, wanted",
        [
            ({}, {}, 16, 10),  # four make a batch every 120 ms, the loop takes one every 53 ms: that needs 9.06
            ({}, {}, 8, 7),  # no more than the cores feed
            ({}, {"worker_cpu": 0.25}, 4, 8),  # workers that wait for storage share cores
            ({}, {"worker_cpu": 0.25}, 3, 3 * PER_CORE),
            ({"baseline": 2000.0}, {"worker_ms": 4000.0, "worker_cpu": 0.0}, 16, 16 * PER_CORE),
            ({"baseline": 2000.0}, {"worker_ms": 4000.0, "worker_cpu": 0.0}, 64, MOST_WORKERS),
            ({**FLAT, "supply": 40.0}, {}, 16, 4),  # enough already
        ],
    )
    def test_workers_wanted(self, given: dict[str, float], worker: dict[str, float], cores: int, wanted: int) -> None:
        seen = {**BUSY, "baseline": {**BUSY["baseline"], **worker}}
        assert model({**STARVED, **given}, seen, environment={"cores": cores}).workers_wanted() == wanted

    @pytest.mark.parametrize(
        "work, workers",
        [
            (exactly(350.0), 2),  # 15 ms a batch from four, 53 a step
            (exactly(360.0), 1),  # 12 ms
            (Interval(350.0, 200.0, 360.0), None),  # at worst 60 ms
            (Interval(350.0, 250.0, 360.0), None),  # at worst 45 ms from four, 60 from three
            (Interval(350.0, 270.0, 360.0), 3),  # at worst 52 ms from three
            (exactly(200.0), None),
            (exactly(0.0), None),
        ],
    )
    def test_workers_that_a_change_leaves_needed(self, work: Interval, workers: int | None) -> None:
        assert model().workers_needed(Change(work=work)) == workers

    def test_workers_needed_without_workers(self) -> None:
        assert model(workers=0).workers_needed(Change(work=exactly(350.0))) is None

    def test_cores(self) -> None:
        assert model().cores_wanted() == pytest.approx(400 / 53 + 1)
        assert model(seen={}, within=Inside()).cores_wanted() is None


@pytest.mark.parametrize(
    "ladder, expected",
    [(climbing(host=9.0), True), (climbing(host=1.0), False), (without(climbing(host=9.0), "device"), False)],
)
def test_whether_transfer_matters(ladder: dict[str, float], expected: bool) -> None:
    assert transfer_matters(make(ladder), gate=0.05) is expected


def test_the_model_agrees_with_the_verdicts_ceiling() -> None:
    """Without the workers' work, the loop limits itself."""
    diagnosis = diagnose_session(make(climbing(raw=30.0), noise=0.0, evidence=BUSY, inside=inside(7.0, load=0.0)))
    found = what_if(diagnosis.ladder)
    assert found is not None and diagnosis.verdict.next_ceiling is not None
    assert found.step(Change(work=exactly(360.0))).value == pytest.approx(found.loop)
    assert 1000 / found.loop == pytest.approx(diagnosis.verdict.next_ceiling[1], rel=0.02)
