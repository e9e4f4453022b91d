"""What other processes do to a window: bounds that follow from the kernel's counters alone."""

from __future__ import annotations

import pytest

from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.numbers.load import alike, foreign_cores, foreign_ms, held_up_ms, mean_account, others, wait_ms
from pipediag.session import Account, Window

from ..made import climbing, make


def window(rung: str = "baseline", ms: float = 100.0, account: Account | None = None, **evidence: float) -> Window:
    return Window(rung, 0, 10, 10 * ms / 1000, 10, evidence=evidence, account=account)


class TestForeign:
    """A step of 100 ms, 60 of them ready without a core, against one of 40 ms that never is."""

    quiet = window("device", 40.0, Account(cpu_ms=40.0))
    queued = Account(cpu_ms=40.0, queue_ms=60.0)

    def test_workers_that_use_no_cpu_keep_no_thread_from_its_core(self) -> None:
        """The wait of 60 ms is foreign but for the 2 ms that a worker computes for a batch."""
        loaded = window(account=self.queued, worker_ms=8.0, worker_cpu=0.25)
        assert foreign_ms(loaded, self.quiet) == 58.0

    def test_workers_that_compute_as_long_may_have_caused_all_of_it(self) -> None:
        loaded = window(account=self.queued, worker_ms=200.0, worker_cpu=0.5)
        assert foreign_ms(loaded, self.quiet) == 0.0

    def test_batches_made_for_later_count(self) -> None:
        """Ten steps, and ten batches more in the queues: twice the CPU time a step."""
        loaded = window(account=self.queued, worker_ms=20.0, worker_cpu=1.0, stock=10.0)
        assert foreign_ms(loaded, self.quiet) == 20.0

    def test_threads_of_the_training_process_count(self) -> None:
        threads = Account(cpu_ms=40.0, queue_ms=60.0, threads_cpu_ms=45.0)
        assert foreign_ms(window(account=threads), self.quiet) == 15.0

    def test_the_run_queue_of_a_thread_beside_the_training_thread_counts(self) -> None:
        waiting = Account(cpu_ms=40.0, threads_queue_ms=60.0)
        assert foreign_ms(window(account=waiting), self.quiet) == 60.0

    def test_a_ceiling_measured_under_load(self) -> None:
        loaded = window("device", 100.0, self.queued)
        assert foreign_ms(window(ms=40.0, account=Account(cpu_ms=40.0)), loaded) == -60.0

    def test_load_that_came_meanwhile(self) -> None:
        """Workers could have caused it, but other processes used half a core more: 50 ms of the step."""
        before = window("device", 40.0, Account(cpu_ms=40.0), cores_busy=1.0, cores_used=1.0)
        loaded = window(account=self.queued, worker_ms=200.0, worker_cpu=0.5, cores_busy=2.0, cores_used=1.5)
        assert foreign_ms(loaded, before) == 50.0

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
