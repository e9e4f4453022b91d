"""What a speedup brings: time and money from the step and the loader's length, workers from their load."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.numbers.intervals import Interval
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.numbers.paired_windows import WORKERS, mean_rate
from pipediag.analysis.thresholds import AGREE
from pipediag.analysis.trials.remedy import savings_of, workers_needed
from pipediag.analysis.whatif import Savings, savings
from pipediag.session import REMEDIED, Remedy, Rung, Session, Startup, Window

from ..made import climbing, inside, make

GAIN = Interval(1.25, 1.0, 2.0)


class TestTime:
    def test_of_an_epoch(self) -> None:
        assert savings(GAIN, 50.0, 1000) == Savings(1000, 50.0, Interval(40.0, 25.0, 50.0))

    def test_with_its_start(self) -> None:
        assert savings(GAIN, 50.0, 1000, startup_ms=50.0) == Savings(
            1000, 100.0, Interval(80.0, 50.0, 100.0), with_start=True
        )

    @pytest.mark.parametrize("step_ms, length", [(50.0, None), (50.0, 0), (None, 1000)])
    def test_of_an_hour_where_the_epoch_is_unknown(self, step_ms: float | None, length: int | None) -> None:
        assert savings(GAIN, step_ms, length) == Savings(None, 3600.0, Interval(2880.0, 1800.0, 3600.0))

    def test_a_gain_without_bounds(self) -> None:
        assert savings(Interval(2.0, 0.0, math.inf), 50.0, 1000).then == Interval(25.0, 0.0, math.inf)


class TestMoney:
    def test_of_an_epoch(self) -> None:
        found = savings(GAIN, 36.0, 100_000).costs(3.0)
        assert found == (3.0, Interval(pytest.approx(2.4), pytest.approx(1.5), pytest.approx(3.0)))

    def test_unknown_without_a_price(self) -> None:
        assert savings(GAIN, 36.0, 100_000).costs(None) is None

    def test_unknown_on_another_machine(self) -> None:
        assert savings(GAIN, 36.0, 100_000, same_machine=False).costs(3.0) is None

    def test_published(self) -> None:
        known = {"epoch_batches": 100_000, "with_start": False, "seconds_now": 3600.0, "workers": 2}
        then = {"value": 2880.0, "low": 1800.0, "high": 3600.0}
        found = savings(GAIN, 36.0, 100_000, workers=2)
        assert found.to_dict(None) == {**known, "seconds_then": then, "cost_now": None, "cost_then": None}
        cost = {"value": 2.4, "low": 1.5, "high": 3.0}
        assert found.to_dict(3.0) == {**known, "seconds_then": then, "cost_now": 3.0, "cost_then": cost}


def advised(session: Session) -> dict[str, Savings | None]:
    return {one.id: one.savings for one in diagnose_session(session).recommendations}


#: Four workers take 400 ms for a batch; the loop could take one every 50.
LATE = {"baseline": {"worker_ms": 400.0, "worker_cpu": 1.0, "process_cpu": 1.0}}


class TestRecommendations:
    def late(self, **more: Any) -> Session:
        return make(climbing(raw=50.0), noise=0.0, evidence=LATE, inside=inside(10.0, load=2.0), **more)

    def test_an_epoch_by_the_step_and_the_gain(self) -> None:
        session = self.late(length=600)
        (gain,) = [one.gain for one in diagnose_session(session).recommendations if one.id == "num-workers"]
        found = advised(session)["num-workers"]
        assert (found.batches, found.now) == (600, pytest.approx(0.6 * LadderView(session).ms("baseline").value))
        assert found.then.value == pytest.approx(found.now / gain.value)
        assert found.then.low == pytest.approx(found.now / gain.high)

    def test_an_hour_of_a_stream(self) -> None:
        found = advised(self.late(length=None))["num-workers"]
        assert found is not None and (found.batches, found.now) == (None, 3600.0)

    def test_other_hardware_has_another_price(self) -> None:
        more, other = advised(self.late(environment={"cores": 4}))["more-cores"], advised(self.late())["num-workers"]
        assert more is not None and not more.same_machine
        assert other is not None and other.same_machine

    def test_the_start_of_an_epoch(self) -> None:
        """10 s for 1000 steps of 50 ms: persistent workers save all but a second."""
        session = make(climbing(), noise=0.0, startups=[Startup(10.0, ready=9.0), Startup(10.0, ready=9.0)])
        found = advised(session)["persistent-workers"]
        steps = LadderView(session).ms("baseline").value
        assert found is not None and found.with_start
        assert (found.now, found.then.value) == (pytest.approx(steps + 10), pytest.approx(steps + 1))


def tried(
    step_ms: float = 50.0,
    busy: float = 3.0,
    wait_ms: float = 0.5,
    blocked: float = 0.0,
    rounds: int = 4,
    lacks: str = "",
    **more: Any,
) -> Session:
    """A loop of 100 ms a step that twelve workers limit; then ``rounds`` under a remedy, with ``busy`` cores in use."""
    today = {"baseline": {"worker_ms": 1200.0, "worker_cpu": 1.0 - blocked, "worker_blocked": blocked}}
    session = make(climbing(raw=50.0), workers=12, noise=0.0, evidence=today, **more)
    session.remedy, session.rungs[REMEDIED] = Remedy(device="cuda:0"), Rung(REMEDIED)
    seen = {"process_cpu": 1.0, "cores_used": 1.0 + busy, "wait_ms": wait_ms}
    seen.pop(lacks, None)
    first = 1 + max(window.round for window in session.windows)
    for round_ in range(first, first + rounds):
        session.windows.append(Window("baseline", round_, 10, 1.0))
        session.windows.append(Window(REMEDIED, round_, 10, step_ms / 100, evidence=seen))
    return session


class TestRemedy:
    def test_what_pays(self) -> None:
        session = tried(length=6000)
        found = savings_of(LadderView(session), REMEDIED)
        now = 6 * LadderView(session).ms("baseline").value
        assert found is not None and (found.batches, found.now) == (6000, pytest.approx(now))
        assert found.then.value == pytest.approx(now / 2)
        assert found.workers == 4

    def test_what_does_not_pay(self) -> None:
        assert savings_of(LadderView(tried(step_ms=110.0)), REMEDIED) is None

    def test_what_was_not_tried(self) -> None:
        assert savings_of(LadderView(make(climbing(raw=50.0))), REMEDIED) is None

    def test_published(self) -> None:
        diagnosis = diagnose_session(tried(length=6000), price=3.0)
        published, found = diagnosis.to_dict(), savings_of(diagnosis.ladder, REMEDIED)
        assert found is not None and published["price"] == 3.0
        assert published["remedy"]["savings"] == found.to_dict(3.0)
        assert diagnose_session(tried(step_ms=110.0)).to_dict()["remedy"]["savings"] is None


def needed(**seen: Any) -> int | None:
    return workers_needed(LadderView(tried(**seen)), REMEDIED)


class TestWorkersNeeded:
    @pytest.mark.parametrize("busy, workers", [(0.5, 1), (3.0, 4), (3.45, 4), (3.5, 5), (9.5, 11), (9.6, None)])
    def test_those_that_are_busy(self, busy: float, workers: int | None) -> None:
        assert needed(busy=busy) == workers

    def test_the_careful_end(self) -> None:
        """Of 3.3 busy workers, four would keep up."""
        session = tried()
        for window, cores in zip(session.windows_of(REMEDIED), [3.8, 4.8, 3.8, 4.8], strict=True):
            window.evidence = {**window.evidence, "cores_used": cores}
        high = mean_rate([2.8, 3.8, 2.8, 3.8], WORKERS).high
        assert math.ceil(AGREE * 3.3) == 4
        assert workers_needed(LadderView(session), REMEDIED) == math.ceil(AGREE * high) == 5

    @pytest.mark.parametrize("blocked, workers", [(0.1, 7), (0.25, 11), (0.3, None)])
    def test_blocked_time_counts_as_today(self, blocked: float, workers: int | None) -> None:
        """A tenth of a batch's 1200 ms waited for, at 50 ms a step: 2.4 workers beside the 3 that compute."""
        assert needed(blocked=blocked) == workers

    def test_unknown_while_the_loop_waits(self) -> None:
        assert needed(wait_ms=3.0) is None

    @pytest.mark.parametrize("lacks", ["process_cpu", "cores_used", "wait_ms"])
    def test_unknown_without_evidence(self, lacks: str) -> None:
        assert needed(lacks=lacks) is None

    def test_unknown_after_few_rounds(self) -> None:
        assert needed(rounds=1) is None
        assert needed(rounds=0) is None

    def test_unknown_below_the_clocks_resolution(self) -> None:
        assert needed(busy=0.0) is None

    @pytest.mark.parametrize("lacks", ["worker_ms", "worker_blocked"])
    def test_unknown_without_the_workers_time_today(self, lacks: str) -> None:
        session = tried()
        for window in session.windows:
            window.evidence.pop(lacks, None)
        assert workers_needed(LadderView(session), REMEDIED) is None
