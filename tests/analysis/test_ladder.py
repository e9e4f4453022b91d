"""A session's windows as the analysis reads them: which are left out, and what other processes do to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.numbers.foreign_load import (
    alike,
    foreign_cores,
    foreign_ms,
    held_up_ms,
    mean_account,
    others,
    wait_ms,
)
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.stopping import next_round
from pipediag.analysis.summary import summarise
from pipediag.report.diagnosis import step_line
from pipediag.session import Account, Session, Window

from ..made import blocks, climbing, make, waits


def session_of(**rungs: Sequence[float]) -> Session:
    """A session with one window per round for each of these milliseconds per step, by rung."""
    session = make({})
    for rung, times in rungs.items():
        session.windows += [Window(rung, round_, 10, ms / 100) for round_, ms in enumerate(times)]
    return session


def with_workers(session: Session, *took: float) -> Session:
    """Set the workers' milliseconds for a batch in each baseline window."""
    for window, ms in zip(session.windows_of("baseline"), took, strict=True):
        window.evidence["worker_ms"] = ms
    return session


class TestWarmUp:
    """The start of a training is untypical: slow first windows are left out."""

    def test_workers_that_were_slow_at_first(self) -> None:
        session = with_workers(session_of(device=[50, 50, 50], baseline=[130, 100, 102]), 400, 300, 306)
        ladder = LadderView(session)
        assert ladder.values("baseline") == pytest.approx([100, 102])
        assert (ladder.windows("baseline"), ladder.ms("baseline").value) == (2, pytest.approx(101))
        assert ladder.evidence("baseline")["worker_ms"] == 303

    def test_it_is_the_workers_time_that_counts_under_the_baseline(self) -> None:
        """The loop's pace depends on how many batches were queued."""
        slow_loop = with_workers(session_of(device=[50, 50], baseline=[200, 100]), 300, 300)
        assert LadderView(slow_loop).windows("baseline") == 2
        not_seen = session_of(device=[50, 50], baseline=[200, 100])
        assert LadderView(not_seen).windows("baseline") == 2

    @pytest.mark.parametrize("typical, left", [(300, 3), (380, 3), (400, 2)])
    def test_most_batches_are_slow_in_a_warm_up(self, typical: float, left: int) -> None:
        """If a few were, as with rare large samples, to leave them out would hide what they cost."""
        session = with_workers(session_of(device=[50] * 3, baseline=[130, 100, 100]), 400, 300, 300)
        for window, ms in zip(session.windows_of("baseline"), (typical, 300, 300), strict=True):
            window.evidence["typical_ms"] = ms
        assert LadderView(session).windows("baseline") == left

    @pytest.mark.parametrize("first, left", [(383, 3), (384, 2)])
    def test_slower_by_nearly_a_third(self, first: float, left: int) -> None:
        session = with_workers(session_of(device=[50], baseline=[130, 100, 100]), first, 300, 290)
        assert LadderView(session).windows("baseline") == left

    @pytest.mark.parametrize("rung", ["device", "host"])
    @pytest.mark.parametrize("first, left", [(53.8, 3), (54.0, 2)])
    def test_steps_from_a_cache_by_a_tenth(self, rung: str, first: float, left: int) -> None:
        ladder = LadderView(session_of(**{rung: [first, 50, 48]}, baseline=[100, 100, 100]))
        assert ladder.windows(rung) == left

    def test_slower_than_is_usual_later(self) -> None:
        """Otherwise it is no warm-up, but the usual difference between windows."""
        session = with_workers(session_of(device=[59.9, 50, 59], baseline=[130, 100, 130]), 400, 300, 390)
        assert (LadderView(session).windows("device"), LadderView(session).windows("baseline")) == (3, 3)

    def test_slower_later_is_no_warming_up(self) -> None:
        session = with_workers(session_of(device=[50, 60, 50], baseline=[100, 130, 100]), 300, 400, 300)
        assert (LadderView(session).windows("device"), LadderView(session).windows("baseline")) == (3, 3)

    def test_the_first_by_its_round(self) -> None:
        session = with_workers(session_of(device=[60, 50], baseline=[100, 100]), 400, 300)
        session.windows.reverse()
        ladder = LadderView(session)
        assert (ladder.values("device"), ladder.values("baseline")) == ([pytest.approx(50)], [pytest.approx(100)])

    def test_all_that_were_slow_in_the_beginning(self) -> None:
        assert LadderView(session_of(device=[90, 70, 50], baseline=[100] * 3)).values("device") == [pytest.approx(50)]

    def test_one_window_stays(self) -> None:
        session = with_workers(session_of(device=[60], baseline=[100]), 400)
        assert (LadderView(session).windows("device"), LadderView(session).windows("baseline")) == (1, 1)

    def test_of_other_rungs_none(self) -> None:
        """They come later and depend on the workers."""
        ladder = LadderView(session_of(device=[50, 50], worker=[90, 60], raw=[120, 80], baseline=[100, 100]))
        assert (ladder.windows("worker"), ladder.windows("raw")) == (2, 2)

    def test_what_is_left_out_is_in_no_number(self) -> None:
        """A cold start under the cache hides starvation, and a cold start of the workers fakes it."""
        cold = with_workers(session_of(device=[99, 50, 50], baseline=[100, 100, 100]), 300, 300, 300)
        starved = diagnose_session(cold).verdict.starved
        assert starved is not None and starved.value == pytest.approx(0.5)
        warming = with_workers(session_of(device=[50, 50, 50], baseline=[200, 51, 51]), 800, 200, 200)
        assert diagnose_session(warming).verdict.bottleneck == "none"

    def test_another_window_takes_its_place(self) -> None:
        session = make(climbing(raw=30.0), rounds=2, noise=0.0)
        assert next_round(session) == []
        first = session.windows_of("device")[0]
        first.seconds *= 1.3
        assert "device" in next_round(session)

    def test_not_on_the_cpu(self) -> None:
        """The machine may be slower for some seconds: to leave out windows for that would leave out slow ones only."""
        session = session_of(device=[75, 50, 50], baseline=[78, 52, 52])
        assert LadderView(session).windows("device") == 2
        session.device["type"] = "cpu"
        assert LadderView(session).windows("device") == 3
        assert LadderView(session).share("baseline", "device").value == pytest.approx(1 - 175 / 182, abs=0.002)

    def test_the_session_keeps_its_windows(self) -> None:
        session = session_of(device=[99, 50, 50], baseline=[100, 100, 100])
        LadderView(session)
        assert len(session.windows) == 6


class TestCeiling:
    """The loop's speed without input cost: the fastest rung cached in this process."""

    def test_the_device_as_a_rule(self) -> None:
        assert LadderView(make(climbing(host=5.0), noise=0.0)).ceiling == "device"

    def test_host_where_copying_costs_nothing_and_the_device_was_measured_slower(self) -> None:
        session = session_of(device=[60, 60, 60], host=[50, 50, 50], baseline=[100, 100, 100])
        assert LadderView(session).ceiling == "host"
        verdict = diagnose_session(session).verdict
        assert verdict.starved is not None and verdict.starved.value == pytest.approx(0.5)

    def test_not_what_workers_feed(self) -> None:
        """They may have had contention or a lucky moment."""
        session = session_of(device=[60, 60], worker=[50, 50], sample=[55, 55], baseline=[100, 100])
        assert LadderView(session).ceiling == "device"

    def test_the_first_window_that_was_left_out_does_not_count(self) -> None:
        session = session_of(device=[99, 50, 50], host=[52, 52, 52], baseline=[100, 100, 100])
        assert LadderView(session).ceiling == "device"

    def test_neighbours_in_time_are_compared_and_no_other_windows(self) -> None:
        """The machine was slow while the first baseline window had no neighbour, since that one is left out."""
        session = session_of(device=[90, 60, 60], baseline=[96, 63, 63])
        share = LadderView(session).share("baseline", "device")
        assert share.value == pytest.approx(1 - 60 / 63, abs=0.002)

    def test_a_host_that_slows_down_makes_no_step_without_data_longer(self) -> None:
        """Neighbours in time say how much data costs; later windows of one rung alone do not."""
        session = session_of(device=[60, 60, 160, 160], baseline=[66, 66])
        diagnosis = diagnose_session(session)
        assert diagnosis.ladder.best.value == pytest.approx(60)
        assert [rate.steps_per_s for rate in summarise(diagnosis).rates] == pytest.approx([1000 / 66, 1000 / 60])
        assert step_line(diagnosis).startswith("step 66 ms = model 60 ms + data 6 ms")

    @pytest.mark.parametrize("rung", ["host", "worker", "raw"])
    def test_what_there_is(self, rung: str) -> None:
        assert LadderView(session_of(**{rung: [50, 50]}, baseline=[100, 100])).ceiling == rung


class TestWaited:
    """The interval of the share of a step in which the loop waits."""

    def arm(self, session: Session) -> float:
        waited = LadderView(session).waited("baseline")
        assert waited is not None and waited.value == pytest.approx(0.5)
        assert 0 < waited.low < 0.5 < waited.high < 1
        return (waited.high - waited.low) / 2

    def test_one_window_says_what_such_windows_differ_by(self) -> None:
        assert 0.05 < self.arm(make({"baseline": 100.0}, rounds=1, noise=0.0, evidence=waits(50.0))) < 0.15

    def test_more_of_them_say_more(self) -> None:
        one, two, many = (
            self.arm(make({"baseline": 100.0}, rounds=n, noise=0.0, evidence=waits(50.0))) for n in (1, 2, 12)
        )
        assert one > 1.3 * two > 1.3 * 1.3 * many

    def test_windows_that_differ_widen_it(self) -> None:
        alike, apart = (make({"baseline": 100.0}, rounds=4, noise=0.0, evidence=waits(50.0)) for _ in range(2))
        for window, wait in zip(apart.windows, (20.0, 80.0, 30.0, 70.0), strict=True):
            window.evidence["wait_ms"] = wait
        assert self.arm(apart) > 2 * self.arm(alike)

    @pytest.mark.parametrize("wait, most", [(0.0, 0.001), (1.0, 0.01), (99.0, 0.01), (100.0, 0.001)])
    def test_what_is_nearly_nothing_or_all_is_known_well(self, wait: float, most: float) -> None:
        """The loop's own part has little noise: the step varies with its share of waiting."""
        waited = LadderView(make({"baseline": 100.0}, rounds=1, noise=0.0, evidence=waits(wait))).waited("baseline")
        assert waited is not None and waited.high - waited.low <= 2 * most

    def test_of_observed_steps_too(self) -> None:
        one, many = (make({}, observed=blocks(count, 100.0, 50.0)) for count in (1, 9))
        assert self.arm(one) > 2 * self.arm(many)

    def test_less_than_a_round_says_less(self) -> None:
        """Four steps are a round of four workers, and half of one of eight."""
        four, eight = (make({}, workers=workers, observed=blocks(1, 100.0, 50.0, steps=4)) for workers in (4, 8))
        assert self.arm(eight) == pytest.approx(2**0.5 * self.arm(four))
        short = make({}, workers=0, observed=blocks(1, 100.0, 50.0, steps=1))
        assert self.arm(short) == pytest.approx(2 * self.arm(four)), "without workers four steps count as one"

    def test_where_it_was_not_seen(self) -> None:
        assert LadderView(make({"baseline": 100.0})).waited("baseline") is None


class TestCopies:
    """What workers do for pipediag is not part of training, and takes no longer than the loop waits."""

    def test_inspection_too(self) -> None:
        seen = {"raw": {"copy_ms": 10.0, "own_ms": 6.0, "wait_ms": 30.0}, "baseline": {"own_ms": 4.0, "wait_ms": 30.0}}
        session = make({"device": 40.0, "raw": 90.0, "baseline": 95.0}, noise=0.0, workers=2, evidence=seen)
        ladder = LadderView(session)
        assert ladder.ms("raw").value == pytest.approx(82.0)
        assert ladder.ms("baseline").value == pytest.approx(93.0)

    @pytest.mark.parametrize("wait, left", [(None, 80.0), (30.0, 80.0), (4.0, 86.0), (0.0, 90.0)])
    def test_at_most_what_is_waited(self, wait: float | None, left: float) -> None:
        seen = {"raw": {"copy_ms": 10.0} | ({} if wait is None else {"wait_ms": wait})}
        session = make({"device": 40.0, "raw": 90.0, "baseline": 95.0}, noise=0.0, workers=1, evidence=seen)
        assert LadderView(session).ms("raw").value == pytest.approx(left)


def window(rung: str = "baseline", ms: float = 100.0, account: Account | None = None, **evidence: float) -> Window:
    return Window(rung, 0, 10, 10 * ms / 1000, 10, evidence=evidence, account=account)


class TestForeign:
    """A step of 100 ms, 60 of them ready without a core, against one of 40 ms that never is."""

    quiet = window("device", 40.0, Account(cpu_ms=40.0))
    queued = Account(cpu_ms=40.0, queue_ms=60.0)

    def test_workers_that_use_no_cpu_keep_no_thread_from_its_core(self) -> None:
        """The wait of 60 ms is foreign but for the 2 ms that a worker computes for a batch."""
        loaded = window(account=self.queued, worker_ms=8.0, worker_cpu=0.25)
        assert foreign_ms(loaded, self.quiet) == (58.0, 58.0)

    def test_workers_that_compute_as_long_may_have_caused_all_of_it(self) -> None:
        loaded = window(account=self.queued, worker_ms=200.0, worker_cpu=0.5)
        assert foreign_ms(loaded, self.quiet) == (0.0, 0.0)

    def test_batches_made_for_later_count(self) -> None:
        """Ten steps, and ten batches more in the queues: twice the CPU time a step."""
        loaded = window(account=self.queued, worker_ms=20.0, worker_cpu=1.0, stock=10.0)
        assert foreign_ms(loaded, self.quiet) == (20.0, 20.0)

    def test_threads_of_the_training_process_count(self) -> None:
        threads = Account(cpu_ms=40.0, queue_ms=60.0, threads_cpu_ms=45.0)
        assert foreign_ms(window(account=threads), self.quiet) == (15.0, 15.0)

    def test_the_run_queue_of_a_thread_beside_the_training_thread_counts(self) -> None:
        """The training thread is blocked meanwhile, or spins."""
        waiting = Account(cpu_ms=40.0, other_ms=60.0, threads_queue_ms=60.0)
        assert foreign_ms(window(account=waiting), self.quiet) == (60.0, 60.0)

    def test_threads_that_wait_at_the_same_time_lengthen_the_step_once(self) -> None:
        together = Account(cpu_ms=45.0, queue_ms=55.0, threads_queue_ms=60.0)
        assert foreign_ms(window(account=together), self.quiet) == (60.0, 60.0)

    def test_a_thread_that_computes_longer_waits_longer_under_the_same_load(self) -> None:
        """In a loop without workers both grow tenfold if the thread gets every second millisecond."""
        alone = window("device", 10.0, Account(cpu_ms=5.0, queue_ms=5.0), cores_busy=2.0, cores_used=0.5)
        making = window(account=Account(cpu_ms=50.0, queue_ms=50.0), cores_busy=2.0, cores_used=0.5)
        assert foreign_ms(making, alone) == (0.0, 0.0)

    def test_cores_shared_among_groups_of_processes(self) -> None:
        """The own group has half a core of two: 15 ms of its workers' CPU time cost the training thread up to 60 ms."""
        loaded = window(account=self.queued, worker_ms=15.0, worker_cpu=1.0, cores_busy=2.0, cores_used=0.5)
        before = window("device", 40.0, Account(cpu_ms=40.0), cores_busy=2.0, cores_used=0.5)
        assert foreign_ms(loaded, before) == (0.0, 45.0)

    def test_a_ceiling_measured_under_load(self) -> None:
        loaded = window("device", 100.0, self.queued)
        assert foreign_ms(window(ms=40.0, account=Account(cpu_ms=40.0)), loaded) == (-60.0, -60.0)

    def test_load_that_came_meanwhile(self) -> None:
        """Workers could have caused it, but other processes used half a core more: 50 ms of the step."""
        before = window("device", 40.0, Account(cpu_ms=40.0), cores_busy=1.0, cores_used=1.0)
        loaded = window(account=self.queued, worker_ms=200.0, worker_cpu=0.5, cores_busy=2.0, cores_used=1.5)
        assert foreign_ms(loaded, before) == (50.0, 50.0)

    def test_unknown_without_an_account(self) -> None:
        assert foreign_ms(window(), self.quiet) is None


class TestWaits:
    def test_a_batch_that_lay_ready_is_held_up_by_other_processes(self) -> None:
        """12 ms blocked in next(), 3 of them for a worker that makes the batch, 1 ms of CPU time to hand it over."""
        account = Account(cpu_ms=40.0, waits_ms=12.0, next_cpu_ms=1.0)
        seen = {"late_ms": 3.0, "wait_ms": 13.0, "next_ms": 13.0}
        busy = window(account=account, **seen, cores_busy=2.0, cores_used=0.5)
        assert held_up_ms(busy) == 8.0 and wait_ms(busy) == 5.0
        alone = window(account=account, **seen, cores_busy=0.6, cores_used=0.5)
        assert held_up_ms(alone) == 0.0 and wait_ms(alone) == 13.0

    def test_nor_is_one_held_up_while_the_sampler_waits(self) -> None:
        account = Account(cpu_ms=40.0, waits_ms=12.0, next_cpu_ms=1.0)
        seen = {"late_ms": 3.0, "wait_ms": 13.0, "next_ms": 13.0, "cores_busy": 2.0, "cores_used": 0.5}
        assert held_up_ms(window(account=account, **seen, sampler_ms=9.0)) == 0.0

    def test_without_workers_other_processes_lengthen_both_sides(self) -> None:
        """Of 30 ms that the thread works in a step, 12 are for the batch, however long it waits for a core."""
        for queue in (0.0, 30.0, 120.0):
            account = Account(cpu_ms=30.0, queue_ms=queue, next_cpu_ms=12.0)
            evidence = {"wait_ms": 12.0 + 0.4 * queue, "next_ms": 12.0 + 0.4 * queue}
            rungs = {"device": 18.0 + 0.6 * queue, "baseline": 30.0 + queue}
            accounts = {"device": Account(cpu_ms=18.0, queue_ms=0.6 * queue), "baseline": account}
            session = make(
                rungs, noise=0.0, workers=0, device="cpu", evidence={"baseline": evidence}, accounts=accounts
            )
            waited = LadderView(session).waited("baseline")
            assert waited is not None and waited.value == pytest.approx(0.4)

    def test_waking_up_without_a_core(self) -> None:
        """Of 20 ms in next(), 12 are the thread's own wait for a core, of which the workers explain 2."""
        account = Account(cpu_ms=40.0, queue_ms=12.0, waits_ms=7.0, next_cpu_ms=1.0)
        seen = window(account=account, wait_ms=20.0, next_ms=20.0, worker_ms=4.0, worker_cpu=0.5)
        assert wait_ms(seen) == 10.0

    def test_as_measured_without_an_account(self) -> None:
        assert wait_ms(window(wait_ms=20.0, next_ms=20.0)) == 20.0


def test_cores_that_other_processes_use() -> None:
    assert foreign_cores(window(cores_busy=1.75, cores_used=0.5)) == 1.25
    assert foreign_cores(window(cores_busy=0.5, cores_used=0.75)) == 0.0
    assert foreign_cores(window(cores_busy=1.0)) is None
    session = make(climbing(), evidence={"device": {"cores_busy": 1.5, "cores_used": 0.5}}, environment={"cores": 2})
    assert others(session, session.windows) == 1.0
    session.environment["cgroup_quota"] = 2.0
    assert others(session, session.windows) == 0.0, "under a quota they take nothing"


def test_windows_under_another_load_are_left_out() -> None:
    windows = [window(cores_busy=1.0 + more, cores_used=1.0) for more in (0.0, 0.1, 1.0)]
    assert alike(windows, 0.4) == windows[:2]
    assert alike(windows[1:], 0.4) == windows[1:], "two are needed"
    assert alike([windows[0], windows[2], windows[2]], 0.4) == [windows[2]] * 2


@pytest.mark.parametrize(("baseline_ms", "certain"), [(150.0, True), (300.0, False)])
def test_what_windows_that_were_left_out_say_makes_an_answer_uncertain(baseline_ms: float, certain: bool) -> None:
    """Data costs nothing, and 0 or 50 % while other processes use all cores in one round of four."""
    session = make({"device": 100.0, "baseline": 100.0}, rounds=3, noise=0.0, environment={"cores": 8})
    for one in session.windows:
        one.evidence |= {"cores_busy": 1.0, "cores_used": 1.0}
    busy = {"cores_busy": 8.0, "cores_used": 1.0}
    for rung, ms in (("device", 150.0), ("baseline", baseline_ms)):
        session.windows.append(replace(window(rung, ms, **busy), round=3))
    verdict = diagnose_session(session).verdict
    assert (verdict.bottleneck, verdict.certain) == ("none", certain), verdict.uncertain


def test_a_neighbour_of_the_baseline_is_not_left_out_for_later_windows_under_more_load() -> None:
    session = Session(environment={"cores": 2})
    for rung, round_, ms, foreign in (
        ("worker", 0, 100.0, 1.0),
        ("baseline", 0, 500.0, 1.0),
        ("worker", 2, 300.0, 1.8),
        ("worker", 3, 310.0, 1.8),
    ):
        session.windows.append(replace(window(rung, ms, cores_busy=2.0, cores_used=2.0 - foreign), round=round_))
    ladder = LadderView(session)
    assert ladder.values("worker") == [100.0] and len(ladder.paired("baseline", "worker")) == 1


def test_the_mean_of_accounts() -> None:
    short = Window("device", 0, 10, 1.0, account=Account(cpu_ms=10.0))
    long = Window("device", 1, 30, 3.0, account=Account(cpu_ms=30.0))
    found = mean_account([short, long])
    assert found is not None and found.cpu_ms == 25.0
    assert mean_account([short, window()]) is None and mean_account([]) is None


class TestRatio:
    """The loop takes 100 ms a step and its ceiling 40 ms; other processes make one of the two windows longer."""

    def session(self, device: Account, baseline: Account, device_ms: float = 40.0) -> LadderView:
        accounts = {"device": device, "baseline": baseline}
        return LadderView(make({"device": device_ms, "baseline": 100.0}, rounds=3, noise=0.0, accounts=accounts))

    def test_what_other_processes_add_is_no_cost_of_the_data(self) -> None:
        ladder = self.session(Account(cpu_ms=40.0), Account(cpu_ms=40.0, queue_ms=60.0))
        assert ladder.ratio("baseline", "device").value == 1.0
        assert ladder.cost("baseline", "device").value == 0.0
        assert ladder.cost("baseline", "device").high > 20.0, "a correction of 60 ms is not known to the millisecond"

    def test_a_quiet_machine_needs_no_correction(self) -> None:
        ladder = self.session(Account(cpu_ms=40.0), Account(cpu_ms=40.0, waits_ms=60.0))
        assert ladder.ratio("baseline", "device").value == 2.5
        assert ladder.disturbed("baseline", "device") == 0.0

    def test_a_busy_ceiling_hides_no_cost(self) -> None:
        """Both take 100 ms, but the ceiling lost 60 of them to other processes and the loop waits for data."""
        ladder = self.session(Account(cpu_ms=40.0, queue_ms=60.0), Account(cpu_ms=40.0, waits_ms=60.0), 100.0)
        assert ladder.ratio("baseline", "device").value == 2.5
        assert ladder.disturbed("baseline", "device") == 0.6

    def test_the_workers_take_at_most_what_the_training_thread_lost(self) -> None:
        grown = self.session(Account(cpu_ms=40.0), Account(cpu_ms=45.0, queue_ms=0.5, waits_ms=54.5)).grown("device")
        assert grown is not None and 5.0 <= sum(grown) <= 5.5
        assert LadderView(make({"device": 40.0, "baseline": 100.0})).grown("device") is None
