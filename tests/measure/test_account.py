"""The account of a step: it closes, and it is read from the kernel's own files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipediag.measure.account import Counters, InNext, StepAccount, Times
from pipediag.session import Account

from ..clock import Clock


class Scripted(Counters):
    """Counters that return what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.times: Times | None = Times(0.0, 0.0)
        self.threads: dict[int, Times] = {}
        self.stolen = 0.0

    def here(self) -> Times | None:
        return self.times

    def others(self) -> dict[int, Times]:
        return dict(self.threads)

    def steal(self) -> float:
        return self.stolen


class Loop:
    """A loop whose thread works, queues and is blocked as a test says."""

    def __init__(self) -> None:
        self.clock, self.counters = Clock(), Scripted()
        self.in_next = InNext(self.clock, self.counters)
        self.account = StepAccount(self.clock, self.counters, self.in_next)

    def spend(self, cpu: float = 0.0, queue: float = 0.0, blocked: float = 0.0) -> None:
        self.clock.seconds += cpu + queue + blocked
        if self.counters.times is not None:
            before = self.counters.times
            self.counters.times = Times(before.cpu + cpu, before.queue + queue)

    def step(self, waits: float = 0.0, late: float = 0.0, **work: float) -> None:
        """Do a step. The kernel counts ``late`` seconds of waiting for a core after ``next()``, not within it."""
        self.in_next.asks()
        self.spend(cpu=0.125, blocked=waits)
        self.in_next.gets()
        self.spend(**work)
        if self.counters.times is not None:
            self.counters.times = Times(self.counters.times.cpu, self.counters.times.queue + late)
        self.account.count()

    @contextmanager
    def stretch(self) -> Iterator[None]:
        self.account.start()
        yield
        self.account.stop()

    def figures(self, steps: int, seconds: float, **more: float) -> Account:
        found = self.account.figures(steps, seconds, **more)
        assert found is not None
        return found


@pytest.mark.parametrize(
    ("late", "work", "seconds", "expected"),
    [
        (0.0, {"cpu": 0.375, "queue": 0.5, "blocked": 0.25}, 4.0, (500.0, 500.0, 750.0, 250.0)),
        # the kernel counts 0.5 s of waiting for a core in next() only after it: the thread seemed blocked meanwhile
        (0.5, {"cpu": 0.125}, 2.0, (250.0, 500.0, 250.0, 0.0)),
    ],
)
def test_it_closes(late: float, work: dict[str, float], seconds: float, expected: tuple[float, ...]) -> None:
    """Two steps that wait 0.75 s in next(): on a CPU, in the run queue, in next() and blocked elsewhere."""
    loop = Loop()
    with loop.stretch():
        for _ in range(2):
            loop.step(waits=0.75, late=late, **work)
    found = loop.figures(2, seconds)
    assert (found.cpu_ms, found.queue_ms, found.waits_ms, found.other_ms) == expected
    assert found.next_cpu_ms == 125.0 and sum(expected) == 500 * seconds


def test_waiting_for_a_core_in_next_is_no_waiting_for_a_batch() -> None:
    loop = Loop()
    with loop.stretch():
        loop.in_next.asks()
        loop.spend(cpu=0.25, queue=0.5, blocked=0.25)
        loop.in_next.gets()
    found = loop.figures(1, 1.0)
    assert (found.queue_ms, found.waits_ms) == (500.0, 250.0)


SLEEPS = {"cpu": 0.125, "blocked": 0.5}
#: A step of the same length in which the kernel counts the sleep as waiting for a core.
MISCOUNTED = {"cpu": 0.125, "queue": 0.5}


@pytest.mark.parametrize(
    ("steps", "queue", "other"),
    [
        ([SLEEPS, SLEEPS, MISCOUNTED, SLEEPS], 0.0, 0.5),
        ([SLEEPS, MISCOUNTED], 0.0, 0.5),
        # its length leaves room for a part of the waiting
        ([SLEEPS, SLEEPS, {"cpu": 0.125, "queue": 0.75}, SLEEPS], 0.0625, 0.5),
        # the thread works, sleeps and waits for a core
        ([SLEEPS, SLEEPS, {**SLEEPS, "queue": 0.5}, SLEEPS], 0.125, 0.5),
        ([{**SLEEPS, "queue": 0.5}] * 4, 0.5, 0.5),
        # steps of two lengths
        ([SLEEPS, {"cpu": 0.125, "queue": 0.25}, {"cpu": 0.125}, SLEEPS], 0.0625, 0.25),
        ([MISCOUNTED], 0.5, 0.0),  # nothing shows what is usual
    ],
)
def test_sleep_that_the_kernel_counts_as_waiting_for_a_core(
    steps: list[dict[str, float]], queue: float, other: float
) -> None:
    loop = Loop()
    with loop.stretch():
        for step in steps:
            loop.step(**step)
    found = loop.figures(len(steps), loop.clock.seconds)
    assert (found.queue_ms, found.waits_ms, found.other_ms) == (1000 * queue, 0.0, 1000 * other)
    assert sum(loop.account.queued()) == len(steps) * queue


def test_sleep_in_next_that_is_miscounted_is_waiting_for_a_batch() -> None:
    loop = Loop()
    with loop.stretch():
        for queue in (0.0, 0.0, 0.5, 0.0):
            loop.in_next.asks()
            loop.spend(queue=queue, blocked=0.5 - queue)
            loop.in_next.gets()
            loop.spend(cpu=0.125)
            loop.account.count()
    found = loop.figures(4, loop.clock.seconds)
    assert (found.cpu_ms, found.queue_ms, found.waits_ms, found.other_ms) == (125.0, 0.0, 500.0, 0.0)


def test_time_beside_the_steps_is_no_part_of_them() -> None:
    """Another loader takes 2 s of the first of two steps, on a CPU and waiting for a core."""
    loop = Loop()
    with loop.stretch():
        loop.spend(**SLEEPS)
        loop.spend(cpu=1.5, queue=0.5)
        loop.account.count(2.0, Times(1.5, 0.5))
        loop.spend(**MISCOUNTED)
        loop.account.count()
    found = loop.figures(2, 2 * 0.625)
    assert (found.cpu_ms, found.queue_ms, found.other_ms) == (125.0, 0.0, 500.0)
    assert loop.account.queued() == [0.0, 0.0]


def test_stretches_add_up_and_what_lies_between_them_does_not_count() -> None:
    loop = Loop()
    for _ in range(2):
        with loop.stretch():
            loop.step(cpu=0.875)
        loop.spend(cpu=7.0)
    loop.account.start()
    loop.step(cpu=9.0)
    loop.account.drop()
    found = loop.figures(2, 2.0)
    assert (found.cpu_ms, found.other_ms) == (1000.0, 0.0)


def test_other_threads() -> None:
    """The CPU time of all of them, and the longest wait of one for a core; a new thread counts from its start."""
    loop = Loop()
    loop.counters.threads = {7: Times(5.0, 1.0)}
    with loop.stretch():
        loop.step(cpu=0.875)
        loop.counters.threads = {7: Times(5.5, 1.25), 8: Times(0.25, 0.125)}
        loop.counters.stolen = 0.5
    found = loop.figures(1, 1.0)
    assert (found.threads_cpu_ms, found.threads_queue_ms, found.queued_ms, found.steal) == (750.0, 250.0, 250.0, 0.5)


def test_a_pause_is_part_of_no_step() -> None:
    loop = Loop()
    with loop.stretch():
        loop.step(waits=20.0, cpu=0.875)
    found = loop.figures(1, 1.0, waiting=20.0)
    assert (found.cpu_ms, found.waits_ms, found.other_ms) == (1000.0, 0.0, 0.0)


def test_none_without_the_kernels_counters() -> None:
    loop = Loop()
    loop.counters.times = None
    with loop.stretch():
        loop.step(cpu=1.0)
    assert loop.account.figures(1, 1.0) is None


class TestOfTheKernel:
    def test_files_that_are_not_there(self, tmp_path: Path) -> None:
        counters = Counters(tmp_path, tmp_path / "stat")
        assert (counters.here(), counters.others(), counters.steal()) == (None, {}, 0.0)

    def test_damaged_files(self, tmp_path: Path) -> None:
        (tmp_path / str(threading.get_native_id())).mkdir()
        (tmp_path / str(threading.get_native_id()) / "schedstat").write_text("12\n")
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "schedstat").write_text("x y\n")
        assert (Counters(tmp_path).here(), Counters(tmp_path).others()) == (None, {})

    def test_stolen_time_of_the_processors_it_may_use(self, tmp_path: Path) -> None:
        stat = tmp_path / "stat"
        tick = os.sysconf("SC_CLK_TCK")
        usable = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        stat.write_text(f"cpu 0 0 0 0 0 0 0 900 0 0\ncpu{usable} 1 2 3 4 5 6 7 {2 * tick} 0 0\nintr 5\n")
        assert Counters(tmp_path, stat).steal() == (2.0 if hasattr(os, "sched_getaffinity") else 0.0)

    @pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no such counters on this system")
    def test_a_thread_that_works_and_sleeps(self) -> None:
        """Half of the time of this thread is work: the rest is blocked, whatever else the machine does."""
        counters = Counters()
        before, others, began = counters.here(), counters.others(), time.perf_counter()
        assert before is not None and threading.get_native_id() not in others
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        time.sleep(0.2)
        after, took = counters.here(), time.perf_counter() - began
        assert after is not None
        spent = after.since(before)
        assert 0.1 <= spent.cpu < 0.19
        assert took - spent.cpu - spent.queue >= 0.19, "it slept as long as that"
        counters.close()
