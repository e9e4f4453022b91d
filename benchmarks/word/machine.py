"""A simulated machine with cores that processes share: torch's own DataLoader runs its workers on it.

A :class:`Machine` is a :class:`.simulated.World` with several processes. Each is a thread of this process that runs
only while it has the machine's turn, so what happens follows from the work alone. ``Machine.context`` stands for
``multiprocessing`` in a DataLoader: the order of tasks and the number of batches under way are torch's.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import Any
from unittest.mock import patch

from torch.utils.data import _DatasetKind
from torch.utils.data._utils import worker as torchs_worker

from pipediag import clock as clocks
from pipediag.ladder.probes import hotlines
from pipediag.ladder.workers import worker_side, worker_state
from pipediag.ladder.workers.delivery import Delivery
from pipediag.loop import wrappers

from .simulated import World

#: Above all numbers that Linux gives to processes.
_PIDS = itertools.count(10_000_000)
_ORDER = itertools.count()


@dataclass(eq=False)
class Process:
    """A process of the machine: its times so far, and what of its work no clock has seen yet."""

    cpu: float = 0.0
    queue: float = 0.0
    pending: float = 0.0
    info: Any = None  # what get_worker_info() returns in it
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    sleeps: int = 0  # the number of its present sleep: others are over
    napping: float = 0.0  # seconds of the sleep in which it looks again and again
    paused: Callable[[], bool] = lambda: False  # what it looks at then


class Ended(BaseException):
    """The machine is switched off."""


class Machine(World):
    """A machine whose processes share its cores evenly.

    ``load`` returns how many other processes want a core now, and until when.
    """

    def __init__(self, cores: float, load: Callable[[float], tuple[float, float]] | None = None) -> None:
        self.main = self.running = Process()
        super().__init__()
        self.cores = cores
        self.context = _Context(self)
        self._load, self._foreign, self._until = load, 0.0, 0.0 if load else float("inf")
        self._done = 0.0  # seconds of work that a process has got that has wanted a core ever since
        self._working: list[tuple[float, int, Process]] = []
        self._sleeping: list[tuple[float, int, int, Process]] = []
        self._ready: deque[Process] = deque()
        self._off, self._broken = False, None
        self.used = 0.0  # core seconds of the machine's own processes

    # As the running process sees it

    @property
    def cpu(self) -> float:
        self._catch_up()
        return self.running.cpu

    @cpu.setter
    def cpu(self, value: float) -> None:
        self.running.cpu = value

    @property
    def queue(self) -> float:
        self._catch_up()
        return self.running.queue

    @queue.setter
    def queue(self, value: float) -> None:
        self.running.queue = value

    def now(self) -> float:
        self._catch_up()
        return super().now()

    def work(self, seconds: float) -> None:
        """Use a core for some seconds; they pass when the process next looks at a clock or waits."""
        self.running.pending += seconds

    def sleep(self, seconds: float) -> None:
        process = self.running
        self._wakes(process, seconds)
        self.wait()
        process.sleeps += 1

    def _nap(self, seconds: float) -> None:
        """Sleep as a worker does during a pause: it need not be woken to find that the pause goes on."""
        process = self.running
        process.napping = seconds
        self.sleep(seconds)
        process.napping = 0.0

    def _catch_up(self) -> None:
        process = self.running
        seconds, process.pending = process.pending, 0.0
        if seconds <= 0:
            return
        began = self.seconds
        heapq.heappush(self._working, (self._done + seconds, next(_ORDER), process))
        self._switch()
        process.cpu += seconds
        process.queue += max(0.0, self.seconds - began - seconds)

    # Turns

    def _wakes(self, process: Process, seconds: float) -> None:
        self._catch_up()
        heapq.heappush(self._sleeping, (self.seconds + seconds, next(_ORDER), process.sleeps, process))

    def wait(self) -> None:
        """Let others run until something has made the running process ready."""
        self._catch_up()
        self._switch()

    def wake(self, process: Process) -> None:
        process.sleeps += 1
        self._ready.append(process)

    def _switch(self) -> None:
        process, chosen = self.running, self._next()
        if chosen is not process:
            self._give(chosen)
            process.turn.acquire()
            if self._off and process is not self.main:
                raise Ended

    def _give(self, process: Process) -> None:
        self.running = process
        torchs_worker._worker_info = process.info
        process.turn.release()

    def _next(self) -> Process:
        """Return the process that goes on next, at the time at which it does."""
        while not self._ready:
            wanted = len(self._working) + self._foreign
            rate = min(1.0, self.cores / wanted) if wanted else 1.0
            finished = self.seconds + max(0.0, self._working[0][0] - self._done) / rate if self._working else None
            woken = self._sleeping[0][0] if self._sleeping else None
            at = max(self.seconds, min(x for x in (finished, woken, self._until) if x is not None))
            self._done += (at - self.seconds) * rate
            self.busy += (at - self.seconds) * min(self.cores, wanted)
            self.used += (at - self.seconds) * rate * len(self._working)
            self.seconds = at
            if at >= self._until and self._load is not None:
                self._foreign, self._until = self._load(at)
            elif finished is not None and finished <= at:
                return heapq.heappop(self._working)[2]
            else:
                _, _, sleep, process = heapq.heappop(self._sleeping)
                if sleep != process.sleeps:  # it was woken before
                    continue
                if process.napping and process.paused():
                    heapq.heappush(self._sleeping, (at + process.napping, next(_ORDER), sleep, process))
                    continue
                return process
        return self._ready.popleft()

    # Starting and ending

    def start(self, process: Process, run: Callable[[], None]) -> None:
        def body() -> None:
            process.turn.acquire()
            try:
                if not self._off:
                    run()
                    self._catch_up()
            except Ended:
                return
            except BaseException as error:
                self._broken = error
                raise
            if not self._off:
                self._give(self._next())

        threading.Thread(target=body, daemon=True).start()
        self._ready.append(process)
        self.started.append(process)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let pipediag read this machine's clocks and counters, in its workers too."""
        self.started: list[Process] = []
        with ExitStack() as undo:
            undo.enter_context(super().installed())
            undo.enter_context(patch.object(clocks.time, "sleep", self._nap))
            for module in (worker_side, worker_state):
                undo.enter_context(patch.object(module, "queue_clock", lambda: lambda: self.queue))
            undo.enter_context(patch.object(worker_side, "Delivery", self._delivery))
            undo.enter_context(patch.object(wrappers, "end_worker_with_parent", lambda: None))
            undo.enter_context(patch.object(torchs_worker, "_worker_info", None))
            undo.enter_context(patch.object(hotlines, "LOOKS", 0))  # a thread that looks has a time of its own
            try:
                yield
            finally:
                self._off = True
                for process in self.started:
                    process.turn.release()

    def _delivery(self, *made: Any) -> Delivery:
        return Delivery(*made, made=self.now())

    def counted(self) -> tuple[float, float, float]:
        return self.busy, self.main.cpu, self.used


class _Context(BaseContext):
    """What a DataLoader takes from ``multiprocessing``."""

    _name = "fork"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.starting = 0.0  # seconds of work that a process needs before it begins
        self.launching = 0.0  # seconds that the training process works to start another
        self.handing = 0.0  # seconds that the training process works to get a batch

    def Queue(self, maxsize: int = 0) -> Any:
        return _Queue(self._machine)

    def Event(self) -> Any:
        return threading.Event()

    def Process(self, target: Any, args: tuple[Any, ...]) -> Any:  # type: ignore[override]
        return _Worker(self._machine, args)


class _Queue:
    """A queue between processes. What is put arrives at once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._items: deque[Any] = deque()
        self._waiting: deque[Process] = deque()

    def put(self, item: Any) -> None:
        self._machine._catch_up()
        self._items.append(item)
        if self._waiting:
            self._machine.wake(self._waiting.popleft())

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        machine, process = self._machine, self._machine.running
        machine._catch_up()
        if not self._items and block:
            self._waiting.append(process)
            if timeout is not None:
                machine._wakes(process, timeout)
            machine.wait()
            process.sleeps += 1
        if not self._items:
            if process in self._waiting:
                self._waiting.remove(process)
            raise queue.Empty
        if process is machine.main:
            machine.work(machine.context.handing)
        return self._items.popleft()

    def qsize(self) -> int:
        self._machine._catch_up()
        return len(self._items)

    def close(self) -> None:
        pass

    cancel_join_thread = join_thread = close


class _Worker:
    """A worker of a DataLoader, with a copy of its own of what stands for the dataset."""

    daemon = True

    def __init__(self, machine: Machine, args: tuple[Any, ...]) -> None:
        self.pid = next(_PIDS)
        self._machine, self._args = machine, args
        self._process = Process()
        self._joining: list[Process] = []
        self._alive = False

    def start(self) -> None:
        machine = self._machine
        machine.work(machine.context.launching)
        machine._catch_up()
        self._alive = True
        machine.start(self._process, self._run)

    def is_alive(self) -> bool:
        return self._alive and not self._machine._off

    def join(self, timeout: float | None = None) -> None:
        machine = self._machine
        machine._catch_up()
        if self._alive and not machine._off:
            self._joining.append(machine.running)
            machine.wait()

    def terminate(self) -> None:
        raise AssertionError("a simulated worker ends when it is asked to")

    def _run(self) -> None:
        """Make batches as torch's worker does."""
        machine = self._machine
        kind, dataset, tasks, results, _, auto, collate, drop_last, seed, init, number, workers, *_ = self._args
        dataset = dataset.pop() if isinstance(dataset, list) else dataset
        if isinstance(dataset, wrappers.StagedDataset):
            side = copy.copy(dataset._worker_side)
            side.dataset = copy.copy(side.dataset)
            dataset, collate = wrappers.StagedDataset(side), wrappers.StagedCollate(side)
            init = wrappers.InitWorker(side, init._user)
            self._process.paused = side.rung_switch._is_paused
        machine.work(machine.context.starting)
        machine._catch_up()
        info = torchs_worker.WorkerInfo(id=number, num_workers=workers, seed=seed + number, dataset=dataset)
        self._process.info = torchs_worker._worker_info = info
        if init is not None:
            init(number)
        fetcher = _DatasetKind.create_fetcher(kind, dataset, auto, collate, drop_last)
        while (task := tasks.get()) is not None:
            if isinstance(task, torchs_worker._ResumeIteration):
                results.put((task, None))
                continue
            place, indices = task
            try:
                made = fetcher.fetch(indices)
            except Exception as error:
                made = torchs_worker.ExceptionWrapper(where=f"in simulated worker {number}: {error}")
            results.put((place, made))
        self._alive = False
        for process in self._joining:
            machine.wake(process)
