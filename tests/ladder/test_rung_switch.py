"""The switch in shared memory: the rung that workers serve, which workers are busy, and pauses."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from pipediag.clock import SystemClock
from pipediag.ladder.feed import Feed
from pipediag.ladder.workers import rung_switch as module
from pipediag.ladder.workers.rung_switch import PAUSE, RungSwitch
from pipediag.ladder.workers.rungs import SERVED, Served
from pipediag.ladder.workers.worker_state import WorkerState
from pipediag.session import cut_rung

ROOT = Path(__file__).resolve().parents[2]
#: Maximum seconds to wait for something that takes a moment.
PATIENCE = 15.0


def eventually(look: Callable[[], Any], patience: float = PATIENCE) -> bool:
    until = time.monotonic() + patience
    while not (found := look()) and time.monotonic() < until:
        time.sleep(0.01)
    return bool(found)


class TestSwitching:
    @pytest.mark.parametrize("links", [1, 2, 17, 999])
    @pytest.mark.parametrize(
        ("rung", "served"),
        [
            *((rung, rung) for rung in ("worker", "sample", "raw", "warm", "baseline")),
            *((rung, "baseline") for rung in ("device", "host", "supply", "remedied", "settings:2")),
        ],
    )
    def test_what_workers_serve(self, rung: str, served: str, links: int) -> None:
        rung_switch = RungSwitch()
        assert (rung_switch.rung, rung_switch.pool_bytes) == ("baseline", 0)
        rung_switch.set(cut_rung(links))
        assert rung_switch.rung == f"transform:{links}"
        rung_switch.set(rung)
        assert rung_switch.rung == served

    @pytest.mark.parametrize("rung", ["nonsense", "transform", "transform:", "transform:x", "transform:-1"])
    def test_unknown_rung(self, rung: str) -> None:
        with pytest.raises(ValueError):
            RungSwitch().set(rung)

    def test_is_in_shared_memory(self) -> None:
        rung_switch = RungSwitch(3)
        assert rung_switch._shared.is_shared()
        rung_switch.pool_bytes = 1 << 40
        assert rung_switch.pool_bytes == 1 << 40
        assert (rung_switch.rung, rung_switch.at_work) == ("baseline", 0)


class Time:
    """The switch's clock: ``look`` is called whenever somebody waits, and sleeping moves the time."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.look: Callable[[], Any] = lambda: None

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.look()
        self.seconds += seconds
        assert self.seconds < 1100.0, "it waits forever"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Polls of a pause are 0.25 s apart, so that sums of them are exact."""
    clock = Time()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "_LOOK", 1 / 4)
    return clock


def begins_after(rung_switch: RungSwitch, worker: int, clock: Time) -> float:
    began = clock.seconds
    rung_switch.begin(worker)
    return clock.seconds - began


class TestPausing:
    """Pauses on a clock that moves only by waiting."""

    def test_no_pause(self, clock: Time) -> None:
        assert begins_after(RungSwitch(2), 0, clock) == 0.0

    @pytest.mark.parametrize(
        ("does", "when", "paused"),
        [
            ("nothing", (), PAUSE),  # workers of a dead training process must not wait forever
            ("resumes", (1003.0, 1100.0), 3.25),
            ("pauses", (1000.0, 1006.0), 6.0 + PAUSE),
            # from one cached rung to the next, workers must not begin a batch
            *((rung, (1000.0, 1000.0), PAUSE) for rung in ("device", "host", "sample", "remedied")),
        ],
    )
    def test_how_long_a_pause_is(self, clock: Time, does: str, when: tuple[float, float], paused: float) -> None:
        """With what the training process does meanwhile, or the rung that it sets."""
        rung_switch = RungSwitch(2)
        rung_switch.pause()
        if when:
            call = {"resumes": rung_switch.resume, "pauses": rung_switch.pause}.get(does, lambda: rung_switch.set(does))
            clock.look = lambda: when[0] <= clock.seconds <= when[1] and call()
        assert begins_after(rung_switch, 0, clock) == paused
        assert begins_after(rung_switch, 1, clock) == 0.0, "it is over for all workers"

    def test_a_pause_after_a_pause(self, clock: Time) -> None:
        rung_switch = RungSwitch(2)
        rung_switch.pause()
        rung_switch.resume()
        assert begins_after(rung_switch, 0, clock) == 0.0
        rung_switch.pause()
        assert begins_after(rung_switch, 0, clock) == PAUSE

    def test_the_training_process_is_never_paused(self, clock: Time) -> None:
        """It makes its own batches, and would wait for itself."""
        rung_switch = RungSwitch(2)
        rung_switch.pause()
        assert begins_after(rung_switch, -1, clock) == 0.0
        assert rung_switch.at_work == 0, "nor is it counted as the last of the workers"
        rung_switch.end(-1)
        assert begins_after(rung_switch, 1, clock) == PAUSE, "nor does it end a pause"
        rung_switch.end(-1)
        assert rung_switch.at_work == 1

    def test_more_workers_than_are_counted(self, clock: Time) -> None:
        """A loop may rebuild its loader with more workers."""
        rung_switch = RungSwitch(2)
        rung_switch.pause()
        assert begins_after(rung_switch, 2, clock) == PAUSE
        assert rung_switch.at_work == 0


class TestAtWork:
    def test_from_the_beginning_to_the_end_of_a_batch(self) -> None:
        rung_switch, counts = RungSwitch(3), []
        for call, worker in [
            (rung_switch.begin, 0),
            (rung_switch.begin, 2),
            (rung_switch.end, 0),
            (rung_switch.begin, 1),
            (rung_switch.end, 0),
        ]:
            call(worker)
            counts.append(rung_switch.at_work)
        assert counts == [1, 2, 1, 2, 2]

    def test_a_waiting_worker_is_not_at_work(self, clock: Time) -> None:
        rung_switch, counts = RungSwitch(2), []
        rung_switch.begin(1)
        rung_switch.pause()
        clock.look = lambda: counts.append(rung_switch.at_work)
        rung_switch.begin(0)
        assert set(counts) == {1} and rung_switch.at_work == 2

    def test_a_worker_that_sees_no_pause_is_at_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The order matters: otherwise a worker could begin a batch unseen."""
        rung_switch = RungSwitch(1)
        seen = []
        monkeypatch.setattr(rung_switch, "_is_paused", lambda: seen.append(rung_switch.at_work))
        rung_switch.begin(0)
        assert seen == [1]

    def test_workers_that_have_ended_are_forgotten(self) -> None:
        rung_switch = RungSwitch(2)
        rung_switch.pool_bytes = 7
        rung_switch.set("sample")
        rung_switch.begin(0)
        rung_switch.begin(1)
        rung_switch.forget()
        assert (rung_switch.at_work, rung_switch.rung, rung_switch.pool_bytes) == (0, "sample", 7)

    def test_nor_does_one_made_for_an_inference_refuse_it(self) -> None:
        """A loop in inference mode makes it there; the script ends outside."""
        with torch.inference_mode():
            rung_switch = RungSwitch(1)
        rung_switch.begin(0)
        rung_switch.forget()
        assert rung_switch.at_work == 0


class Counting(Dataset[int]):
    """Counts the samples that each worker begins; each waits for the gate and takes a moment."""

    def __init__(self, size: int = 4000, fails: bool = False) -> None:
        self.begun = torch.zeros(2, dtype=torch.int64).share_memory_()
        self.gate = torch.ones(1, dtype=torch.int64).share_memory_()
        self.size, self.fails = size, fails

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.begun[get_worker_info().id] += 1
        while not self.gate:
            time.sleep(0.002)
        time.sleep(0.005)
        if self.fails:
            raise RuntimeError("it fails")
        return index


class Streaming(IterableDataset[int]):
    def __init__(self, items: Counting) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        return (self.items[index] for index in range(len(self.items)))


@contextmanager
def feeding(data: Counting, streams: bool = False, prefetch: int = 32) -> Iterator[Feed]:
    dataset: Any = Streaming(data) if streams else data
    loader = DataLoader(dataset, batch_size=2, num_workers=2, prefetch_factor=prefetch, multiprocessing_context="fork")
    feed = Feed(loader, DataLoader._get_iterator, SystemClock())
    try:
        yield feed
    finally:
        feed.close()


class Zeros(Served):
    """A rung of a test's own: items that nobody makes."""

    def items(self, state: WorkerState, count: int) -> list[Any]:
        return [torch.zeros(1)] * count


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked")
def test_a_new_rung_is_one_class_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SERVED, "zeros", Zeros)
    data = Counting()
    with feeding(data, prefetch=4) as feed:
        feed.take()
        feed.rung_switch.set("zeros")
        fitting = (one for _ in range(200) if (one := feed.take()) is not None and one.fits("zeros"))
        assert not any(one.batch.any() for one in itertools.islice(fitting, 4))
        begun = data.begun.tolist()
        assert feed.take().fits("zeros") and data.begun.tolist() == begun, "the dataset is not asked"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked")
class TestRealWorkers:
    @pytest.mark.parametrize("streams", [False, True])
    def test_paused_workers_begin_nothing(self, streams: bool) -> None:
        data = Counting()
        with feeding(data, streams) as feed:
            assert feed.take() is not None
            feed.pause()
            assert eventually(lambda: feed.at_work == 0)
            begun = int(data.begun.sum())
            assert begun < 2 * feed.backlog, "they still have requests"
            time.sleep(0.3)
            assert (feed.at_work, int(data.begun.sum())) == (0, begun)
            feed.rung_switch.set("host")
            feed.pause()
            time.sleep(0.1)
            assert (feed.at_work, int(data.begun.sum())) == (0, begun)
            assert feed.take() is not None
            assert eventually(lambda: data.begun.sum() >= begun + 20), "they have served the remaining requests"

    def test_workers_are_seen_at_work(self) -> None:
        """Neither gets beyond its first sample; later both fill their queues, and then idle."""
        data = Counting()
        data.gate.zero_()
        with feeding(data, prefetch=2) as feed:
            assert feed.at_work == 0
            feed.open()
            assert eventually(lambda: feed.at_work == 2)
            time.sleep(0.05)
            assert (feed.at_work, feed.ready) == (2, 0)
            data.gate.fill_(1)
            assert eventually(lambda: feed.ready == feed.backlog == 4)
            assert eventually(lambda: feed.at_work == 0)

    def test_a_pause_does_not_interrupt_a_batch(self) -> None:
        data = Counting()
        data.gate.zero_()
        with feeding(data) as feed:
            feed.open()
            assert eventually(lambda: data.begun.tolist() == [1, 1])  # one that is about to begin would wait
            feed.pause()
            assert feed.at_work == 2
            data.gate.fill_(1)
            assert eventually(lambda: feed.at_work == 0 and feed.ready == 2)
            assert data.begun.tolist() == [2, 2], "one batch of two samples each"

    def test_a_worker_that_failed_is_not_at_work(self) -> None:
        data = Counting(fails=True)
        with feeding(data, prefetch=1) as feed:
            with pytest.raises(RuntimeError, match="it fails"):
                feed.take()
            feed.pause()
            assert eventually(lambda: feed.at_work == 0)

    @pytest.mark.parametrize("size, last", [(3, [2]), (4, [2, 3])])
    def test_a_worker_whose_data_has_ended_is_not_at_work(self, size: int, last: list[int]) -> None:
        with feeding(Counting(size), streams=True, prefetch=2) as feed:
            batches = []
            while (delivery := feed.take()) is not None:
                batches.append(delivery.batch.tolist())
            assert sorted(batches) == [[0, 1], [0, 1], last, last]
            assert feed.at_work == 0

    @pytest.mark.parametrize("at_work", [False, True])
    def test_closing_does_not_wait_for_the_end_of_a_pause(self, at_work: bool) -> None:
        data = Counting()
        with feeding(data) as feed:
            assert feed.take() is not None
            feed.pause()
            assert at_work or eventually(lambda: feed.at_work == 0)
            pids, began = feed.worker_pids, time.monotonic()
            feed.close()
            assert time.monotonic() - began < 3.0 < PAUSE
            assert len(pids) == 2 and not living(pids)
            assert feed.at_work == 0

    def test_restarted_workers_are_not_paused(self) -> None:
        data = Counting()
        with feeding(data) as feed:
            assert feed.take() is not None
            feed.pause()
            feed.renew()
            began = time.monotonic()
            assert feed.take() is not None
            assert time.monotonic() - began < PAUSE / 2

    def test_paused_workers_do_not_outlive_a_killed_training_process(self) -> None:
        """Nobody ends or renews their pause then."""
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from tests.ladder import test_rung_switch as t; t.feed_until_killed(pause=1.0)",
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        pids: list[int] = []
        try:
            pids = [int(pid) for pid in process.stdout.readline().split()]
            assert len(pids) == 2 and living(pids) == pids
            process.kill()
            process.wait()
            assert eventually(lambda: not living(pids)), "they are still alive"
        finally:
            for pid in living([process.pid, *pids]):
                psutil.Process(pid).kill()
            process.communicate()


def feed_until_killed(pause: float) -> None:
    """Keep workers paused until somebody kills this process; print their process ids once they are idle."""
    module.PAUSE = pause
    with feeding(Counting()) as feed:
        assert feed.take() is not None
        feed.pause()
        assert eventually(lambda: feed.at_work == 0)
        print(*feed.worker_pids, flush=True)
        while True:
            feed.rung_switch.pause()
            time.sleep(0.1)


def living(pids: list[int]) -> list[int]:
    """Return the processes that still run, without zombies."""
    return [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
