"""Rank 0 feeds and delays ranks of a simulated job, whose step lasts as long as that of its slowest rank."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from pipediag.analysis.ranks.stragglers import straggler_of
from pipediag.ladder.ranks.lockstep import Leader
from pipediag.ladder.ranks.trials import RankTrials
from pipediag.measure.device import Device
from pipediag.session import Rank, RankTrial, Window

from .ranks import Store
from .simulated import Loop

#: Seconds per batch of all workers of rank 0 together.
OWN_PACE = 1 / 4


class Job(Loop):
    """Rank 0's loop in a job. ``steps`` are the seconds of each rank's own step, ``paces`` those of its input."""

    def __init__(self, steps: Sequence[float], paces: Sequence[float], seconds: float = 1e9) -> None:
        self.steps, self.paces = steps, [OWN_PACE, *paces]
        self.store = Store()
        baseline, fed = max(*steps, *self.paces), max(steps)
        windows = [
            Window(rung, round_, 100, 100 * step, 100, evidence={"worker_ms": 4000 * OWN_PACE})
            for round_ in range(4)
            for rung, step in (("baseline", baseline), ("device", fed))
        ]
        super().__init__(workers=4, budget=200.0, target=2.0, earlier=windows)
        self.leader = Leader(self.store, len(steps), self.clock)
        self.loop_side.lockstep = self.leader
        self.steering.until = seconds
        setting = self.loop_side.setting
        setting.plan.attempt, setting.send = 2, self.session.apply  # type: ignore[method-assign]
        self.session.device = {"type": "cpu"}
        self.ranks = [
            Rank(rank, len(steps), workers=4, worker_ms=4000 * pace, device="cpu")
            for rank, pace in enumerate(self.paces)
        ]
        self.session.ranks = [replace(self.ranks[0])]
        for rank in self.ranks[1:]:
            self.store.set(f"note/{rank.rank}", json.dumps(asdict(rank)))

    @property
    def step(self) -> float:
        """Seconds of rank 0's next step, if its batch is ready."""
        activity = self.leader.activity
        return max(
            max(step + activity.delay_of(rank), 0.0 if activity.rung_of(rank) == "device" else pace)
            for rank, (step, pace) in enumerate(zip(self.steps, self.paces, strict=True))
        )

    @step.setter
    def step(self, seconds: float) -> None:
        """Ignored: the step follows from the ranks."""

    def run(self) -> list[RankTrial]:
        trials = RankTrials(self.leader, self.loop_side, self.windows)
        self.drive(trials.run())  # type: ignore[arg-type]
        return self.session.rank_trials

    @property
    def answer(self) -> Any:
        return straggler_of(replace(self.session, ranks=self.ranks))


@pytest.fixture(autouse=True)
def no_real_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated step includes the delay of each rank."""
    monkeypatch.setattr(Device, "delay", lambda self, seconds: None)


def ms(trial: RankTrial) -> float:
    return 1000 * trial.seconds / trial.steps


class TestInput:
    def test_a_late_rank(self) -> None:
        job = Job([0.5] * 4, [0.25, 2.0, 0.25])
        trials = job.run()
        assert {(*trial.fed,): ms(trial) for trial in trials} == {(): 2000.0, (2,): 500.0, (3,): 2000.0}
        assert [trial.round for trial in trials] == [*range(len(trials))]
        assert {trial.attempt for trial in trials} == {2}
        assert (job.answer.ranks, job.answer.kind) == ((2,), "input")

    def test_none_if_all_are_equal(self) -> None:
        job = Job([0.5] * 3, [0.25, 0.25])
        assert not any(trial.fed and not trial.delayed and len(trial.fed) < 3 for trial in job.run())
        assert job.answer is None

    def test_rank_0_feeds_itself_too(self) -> None:
        """It is fed if all that is known of the others' inputs is that they are fast."""
        job = Job([1 / 16] * 3, [1 / 32, 1 / 32])
        assert (0,) in {(*trial.fed,) for trial in job.run()}
        assert (job.answer.ranks, job.answer.kind) == ((0,), "input")


class TestStep:
    def test_a_slow_rank(self) -> None:
        job = Job([0.5, 0.5, 0.75, 0.5], [0.25] * 3)
        trials = job.run()
        delays = {trial.delay_ms for trial in trials if trial.delayed}
        assert len(delays) == 1
        (delay,) = delays
        for trial in trials:
            held = 750.0 + (delay if 2 in trial.delayed else 0.0)
            assert ms(trial) == pytest.approx(held)
            assert trial.fed == [0, 1, 2, 3]
        assert (job.answer.ranks, job.answer.kind) == ((2,), "step")

    def test_none_if_all_are_equal(self) -> None:
        job = Job([0.5] * 4, [0.25] * 3)
        assert all(trial.delayed in ([], [0], [1], [2], [3]) for trial in job.run())
        assert job.answer is None


class TestTheTime:
    @pytest.mark.parametrize(
        ("steps", "inputs", "answer", "within"),
        [
            ([0.5] * 4, [0.25, 2.0, 0.25], "input", 0.25),
            ([0.5] * 4, [0.25, 8.0, 0.25], "input", 0.25),
            # delayed steps: four ranks without noise need fewer trials than two with it
            ([0.5, 0.5, 0.75, 0.5], [0.25] * 3, "step", 0.5),
        ],
    )
    def test_it_is_known_before(self, steps: list[float], inputs: list[float], answer: str, within: float) -> None:
        """The ladder leaves as much as the trials then take, but for the batches that lie ready."""
        job = Job(steps, inputs)
        expected, began = RankTrials(job.leader, job.loop_side, job.windows).seconds, job.clock.now()
        job.run()
        assert (job.answer.kind, job.answer.level) == (answer, "proven")
        assert expected == pytest.approx(job.clock.now() - began, rel=within)

    def test_it_is_not_known_before_the_loop_was_timed(self) -> None:
        job = Job([0.5] * 4, [0.25, 2.0, 0.25])
        job.session.windows = []
        assert RankTrials(job.leader, job.loop_side, job.windows).seconds == 0.0


class TestTheEnd:
    def test_trials_made_in_time_are_kept(self) -> None:
        """The loop is unsettled afterwards: it settles again before the next window."""
        job = Job([0.5] * 4, [0.25, 2.0, 0.25], seconds=40.0)
        made = job.run()
        assert 1 <= len(made) < len(Job([0.5] * 4, [0.25, 2.0, 0.25]).run())
        assert job.steering.fed_by is None

    def test_nothing_without_caches(self) -> None:
        job = Job([0.5] * 4, [0.25, 2.0, 0.25])
        job.session.windows = [window for window in job.session.windows if window.rung == "baseline"]
        assert job.run() == []
