"""Account for the time of a step: what the training thread did with each of its milliseconds.

Linux counts for each thread its time on a CPU, and the time in which it was ready to run and found no core. A step of
the thread that trains is therefore, without a model,

    step = CPU + run queue + waiting in next() + other blocking

Other blocking is what remains: waiting for the device, for a lock that another thread holds, for a file. The thread
that pins batches holds the interpreter's lock for part of each hand-off, so it grows with the batches that workers
deliver.

From Linux 6.12 on the run queue may be wrong: if the kernel moves a thread to another core right after it fell asleep,
it counts the whole sleep as waiting for a core. :func:`_miscounted` finds the steps in which that happened.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..clock import Clock, time
from ..session import Account
from .machine import allowed_cpus

#: Folders in which Linux describes the threads of this process, and its processors.
TASKS, PROCESSORS = Path("/proc/self/task"), Path("/proc/stat")
#: Position of the stolen time among the numbers of a processor.
_STEAL = 7


class Times(NamedTuple):
    """Seconds of a thread on a CPU, and ready to run without a core."""

    cpu: float
    queue: float

    def since(self, before: Times) -> Times:
        return Times(max(0.0, self.cpu - before.cpu), max(0.0, self.queue - before.queue))


_NO_TIME = Times(0.0, 0.0)


class Counters:
    """The counters of this process's threads; None in place of figures that the kernel does not keep."""

    def __init__(self, tasks: Path = TASKS, processors: Path = PROCESSORS) -> None:
        self._tasks = tasks
        self._processors = processors
        self._thread = 0
        self._file = -1

    def here(self) -> Times | None:
        thread = threading.get_native_id()
        if thread != self._thread:
            self._open(thread)
        if self._file < 0:
            return None
        try:
            # The file's own CPU time is out of date by up to a tick of the scheduler.
            return Times(time.thread_time(), int(os.pread(self._file, 64, 0).split()[1]) / 1e9)
        except (OSError, ValueError, IndexError):
            return None

    def _open(self, thread: int) -> None:
        self.close()
        self._thread = thread
        try:
            self._file = os.open(self._tasks / str(thread) / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._thread, self._file = 0, -1

    def __del__(self) -> None:
        self.close()  # a measurement has no other end that an error in the training step could not skip

    def others(self) -> dict[int, Times]:
        """Return the times of the process's other threads, by number."""
        own, found = str(threading.get_native_id()), {}
        try:
            names = os.listdir(self._tasks)
        except OSError:
            return {}
        for name in names:
            if name == own:
                continue
            try:
                cpu, queue, *_ = (self._tasks / name / "schedstat").read_bytes().split()
                found[int(name)] = Times(int(cpu) / 1e9, int(queue) / 1e9)
            except (OSError, ValueError):  # it has ended
                continue
        return found

    def steal(self) -> float:
        """Return the seconds that a virtual machine's host took from the processors that this process may use."""
        try:
            lines = self._processors.read_text().splitlines()
        except OSError:
            return 0.0
        allowed, ticks = allowed_cpus(), 0
        for line in lines:
            name, *numbers = line.split()
            if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in allowed and len(numbers) > _STEAL:
                ticks += int(numbers[_STEAL])
        return ticks / os.sysconf("SC_CLK_TCK")


class InNext:
    """The loop's thread in ``next()``: seconds in which it was blocked, on a CPU, and without a core, so far."""

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self.blocked = self.cpu = self.queue = 0.0
        self._clock, self._counters = clock, counters
        self._asked: tuple[float, Times | None] = (0.0, None)

    def asks(self) -> None:
        self._asked = self._clock.now(), self._counters.here()

    def gets(self) -> None:
        asked, before = self._asked
        now = self._counters.here()
        if before is None or now is None:
            return
        spent = now.since(before)
        self.cpu += spent.cpu
        self.queue += spent.queue
        self.blocked += max(0.0, self._clock.now() - asked - spent.cpu - spent.queue)


class _Moment(NamedTuple):
    now: float
    here: Times | None
    others: dict[int, Times]
    blocked: float
    next_cpu: float
    next_queue: float
    steal: float


class _Step(NamedTuple):
    """Seconds in which the thread waited for a core in a step, in ``next()`` alone, and in which it did not."""

    queue: float
    queue_in_next: float
    rest: float


def _miscounted(steps: Sequence[_Step]) -> list[float]:
    """Return of each step the seconds of sleep that the kernel counted as waiting for a core.

    A thread that waits for a core does its usual work all the same. If the rest of a step is shorter than in any step
    with little waiting, the thread slept while it seemed to wait.
    """
    usually = statistics.median_low([step.queue for step in steps]) if steps else 0.0
    least = min((step.rest for step in steps if step.queue <= usually), default=0.0)
    return [max(0.0, min(step.queue, least - step.rest)) if step.queue > usually else 0.0 for step in steps]


class StepAccount:
    """The account of one or more stretches of steps on the calling thread."""

    def __init__(self, clock: Clock, counters: Counters, in_next: InNext) -> None:
        self._clock, self._counters, self._in_next = clock, counters, in_next
        self._begun: _Moment | None = None
        self._counted: _Moment | None = None  # the open stretch's start, or the end of its latest step
        self._open_steps: list[_Step] = []
        self._steps: list[_Step] = []
        self._complete = True  # False once a figure was missing
        self._wall = self._cpu = self._queue = self._blocked = self._next_cpu = self._steal = 0.0
        self._others: dict[int, Times] = {}

    def start(self) -> None:
        """Begin a stretch. Call it just before the stretch's clock starts: reading the threads takes time."""
        others, steal = self._counters.others(), self._counters.steal()
        self._begun = self._counted = self._moment(others, steal)
        self._open_steps = []

    def count(self, beside: float = 0.0, worked: Times = _NO_TIME) -> Times:
        """Count a step; return the thread's times in it, 0 if unknown.

        ``beside`` seconds of it, in which the thread ``worked`` so much, belong to no step.
        """
        begun, before, now = self._begun, self._counted, self._moment({}, 0.0)
        assert begun is not None and before is not None, "count() without start()"
        self._counted = now
        if begun.here is None or before.here is None or now.here is None:
            self._open_steps.append(_Step(0.0, 0.0, now.now - before.now - beside))
            return _NO_TIME
        self._begun = begun._replace(here=Times(begun.here.cpu + worked.cpu, begun.here.queue + worked.queue))
        spent = now.here.since(before.here)
        queue = max(0.0, spent.queue - worked.queue)
        rest = now.now - before.now - beside - queue
        self._open_steps.append(_Step(queue, now.next_queue - before.next_queue, rest))
        return spent

    def stop(self) -> None:
        """End the stretch and keep it."""
        begun, self._begun = self._begun, None
        assert begun is not None, "stop() without start()"
        self._steps += self._open_steps
        ended = self._moment({}, 0.0)
        if begun.here is None or ended.here is None:
            self._complete = False
            return
        own = ended.here.since(begun.here)
        self._wall += ended.now - begun.now
        self._cpu += own.cpu
        self._queue += own.queue
        self._blocked += ended.blocked - begun.blocked
        self._next_cpu += ended.next_cpu - begun.next_cpu
        self._steal += self._counters.steal() - begun.steal
        for thread, times in self._counters.others().items():
            spent, before = times.since(begun.others.get(thread, Times(0.0, 0.0))), self._others.get(thread)
            self._others[thread] = Times(*map(sum, zip(spent, before, strict=True))) if before else spent

    def drop(self) -> None:
        self._begun = None

    def queued(self) -> list[float]:
        """Return the seconds in which the thread waited for a core in each step that was kept, 0 if unknown."""
        return [step.queue - over for step, over in zip(self._steps, _miscounted(self._steps), strict=True)]

    def figures(self, steps: int, seconds: float, waiting: float = 0.0) -> Account | None:
        """Return the account per step of ``steps`` steps that took ``seconds``; None without the kernel's counters.

        ``waiting`` seconds in ``next()`` belong to no step.
        """
        if not (self._complete and steps and self._wall > 0):
            return None
        each = 1000.0 / steps
        miscounted = _miscounted(self._steps)
        in_next = sum(min(over, step.queue_in_next) for over, step in zip(miscounted, self._steps, strict=True))
        queue = max(0.0, self._queue - sum(miscounted))
        # On a busy machine Linux may count late that a thread waited for a core. It then seemed to be blocked, which it
        # was not as far as the step has no room for both.
        waits = min(max(0.0, self._blocked + in_next - waiting), max(0.0, seconds - self._cpu - queue))
        queues = [times.queue for times in self._others.values()]
        return Account(
            cpu_ms=round(each * self._cpu, 4),
            queue_ms=round(each * queue, 4),
            waits_ms=round(each * waits, 4),
            other_ms=round(max(0.0, each * (seconds - self._cpu - queue - waits)), 4),
            next_cpu_ms=round(each * self._next_cpu, 4),
            threads_cpu_ms=round(each * sum(times.cpu for times in self._others.values()), 4),
            threads_queue_ms=round(each * max(queues, default=0.0), 4),
            steal=round(max(0.0, self._steal) / self._wall, 4),
        )

    def _moment(self, others: dict[int, Times], steal: float) -> _Moment:
        in_next = self._in_next
        here = self._counters.here()
        return _Moment(self._clock.now(), here, others, in_next.blocked, in_next.cpu, in_next.queue, steal)
