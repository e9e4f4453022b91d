"""Record single steps as they happen, with the batches that workers deliver meanwhile. The number of steps is limited.

Nothing is timed here: the callers pass on the times that they read anyway, on the clock that all processes share.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import torch

from ..clock import Clock
from ..measure.device import Device
from ..measure.evidence import BatchCost
from ..measure.window import StepClock
from ..session import UNTOUCHED, Observed, Session, Stretch
from .workers.delivery import Delivery

#: Maximum steps recorded in a session, under one rung in one pass, and at a time.
_MOST_RECORDED, _PER_RUNG, _AT_A_TIME = 4000, 300, 100
#: The first recorded rungs leave steps for the later ones: each may take this share of those left.
_SHARE_OF_LEFT = 1 / 8


class Queue(Protocol):
    @property
    def ready(self) -> int: ...


class StepRecorder:
    """A recorder of at most ``room`` consecutive steps under ``rung``, in one or more stretches.

    ``began`` is the time that recorded times are relative to.
    """

    def __init__(self, rung: str, attempt: int, began: float, room: int) -> None:
        self._rung = rung
        self._attempt = attempt
        self._began = began
        self._room = room
        self._finished: list[Stretch] = []
        self._begin()

    @classmethod
    def within(cls, session: Session, rung: str, attempt: int) -> StepRecorder:
        """Return a recorder of as many steps as the limits leave in this session."""
        used = sum(len(one.asked) for one in session.stretches)
        of_rung = sum(len(one.asked) for one in session.stretches if (one.rung, one.attempt) == (rung, attempt))
        room = min(_AT_A_TIME, _PER_RUNG - of_rung, int(_SHARE_OF_LEFT * (_MOST_RECORDED - used)))
        return cls(rung, attempt, session.began, room)

    def _begin(self) -> None:
        self._open = Stretch(self._rung, attempt=self._attempt)
        self._asked: float | None = None
        self._ready = 0
        self._got: float | None = None

    def _full(self) -> bool:
        return len(self._open.asked) >= self._room

    def asks(self, now: float, queue: Queue | None = None) -> None:
        """Note that the loop asks for a batch, which ends the current step; ``queue`` is where it takes them from.

        A step whose batch the loop did not get was all waiting.
        """
        if self._full():
            return
        step = self._open
        if self._asked is not None:
            step.asked.append(self._asked)
            step.got.append(now if self._got is None else self._got)
            step.ready.append(self._ready)
            step.ended = now
            if self._full():
                return
        self._asked, self._got = now, None
        self._ready = queue.ready if queue is not None else 0

    def gets(self, now: float) -> None:
        """Note that the loop gets its batch."""
        self._got = now

    def took(self, delivery: Delivery) -> None:
        """Note a batch taken from the queue; workers that report no cost are not known."""
        cost = delivery.cost
        if cost.wall <= 0 or self._full():
            return
        self._open.worker.append(delivery.worker)
        self._open.made_from.append(delivery.made - cost.wall - cost.own)
        self._open.made_until.append(delivery.made)
        self._open.collate_ms.append(1000 * cost.collate)

    def ends(self, now: float | None = None) -> None:
        """End the stretch and keep its finished steps; ``now`` ends the last one if the loop has not done so before."""
        done, steps = self._open, len(self._open.asked)
        if steps:
            if now is not None and not self._full():
                done.ended = now
            self._room -= steps
            for times in (done.asked, done.got, done.made_from, done.made_until):  # rounded: they go into a file
                times[:] = [round(time - self._began, 5) for time in times]
            done.collate_ms[:] = [round(ms, 2) for ms in done.collate_ms]
            done.ended = round(done.ended - self._began, 5)
            self._finished.append(done)
        self._begin()

    def drop(self) -> None:
        """Discard the stretch: its end was not seen."""
        self._begin()

    def take(self, round_: int = UNTOUCHED) -> list[Stretch]:
        """Return the finished stretches, once, as those of this round; record nothing more."""
        found, self._finished, self._room = self._finished, [], 0
        for stretch in found:
            stretch.round = round_
        return found


#: Maximum steps observed in one pass; windows measure the rest.
_MOST_OBSERVED = 256
#: Steps in a block if there are no workers to set its size.
_BLOCK = 4


class Observer:
    """A timer of one loader's steps while its batches arrive as in training.

    The first batch of each epoch and its step are left out: they include the loader's startup, and the very first step
    warms up the device. ``recorder`` records single steps.
    """

    def __init__(self, clock: Clock, workers: int, attempt: int, recorder: StepRecorder) -> None:
        self._clock = clock
        self._workers = workers
        self._size = workers or _BLOCK
        self._attempt = attempt
        self._recorder = recorder
        self._blocks: list[Observed] = []
        self._device: torch.device | None = None
        self._steps = StepClock(clock)
        #: Seconds, seconds waited, seconds that a worker took, and seconds waited for other loaders.
        self._open: list[tuple[float, float, float, float]] = []
        #: What making the batch took and the wait for other loaders, of the steps that are not in a block yet.
        self._made: deque[tuple[BatchCost, float]] = deque()
        self._beside = 0.0
        self._got: BatchCost | None = None  # of the batch that the loop has
        self.seen = 0  # number of steps observed so far in this pass

    def asks(self, device: torch.device | None, queue: Queue) -> None:
        """Note that the loop asks ``queue`` for a batch; ``device`` is where it trains, or None if unknown."""
        if self.seen >= _MOST_OBSERVED:
            return
        if device is not None and self._device is None:
            self._sort()
            self._device, self._steps = device, StepClock(self._clock, Device(device))
            self._got = None
        now = self._steps.asks()
        if self._got is not None:
            self._made.append((self._got, self._beside))
        else:
            self._recorder.ends()
        self._recorder.asks(now, queue)
        self._got, self._beside = None, 0.0
        self._sort()

    def gets(self, delivery: Delivery) -> None:
        """Note that the loop gets a batch in the same way as in training."""
        if self.seen < _MOST_OBSERVED:
            now = self._steps.gets()
            self._recorder.took(delivery)
            self._recorder.gets(now)
            self._got = delivery.cost

    def waits_beside(self, seconds: float) -> None:
        """Note that the loop has waited for a batch of another loader in this step."""
        self._beside += seconds

    def breaks(self) -> None:
        """Discard the current step: it is not a training step."""
        self._steps.breaks()
        self._got = None

    def take(self, last: bool = False) -> list[Observed]:
        """Return the new blocks, each of one round of the workers; with ``last``, the incomplete one as well."""
        if last:
            if self._device is not None and self.seen < _MOST_OBSERVED:
                Device(self._device).synchronize()
            self._sort()
            self._close()
        blocks, self._blocks = self._blocks, []
        return blocks

    def take_stretches(self) -> list[Stretch]:
        """Return the recorded single steps, once, and record no more of them."""
        self._recorder.ends()
        return self._recorder.take()

    def _sort(self) -> None:
        for seconds, waited in self._steps.take():
            cost, beside = self._made.popleft()
            # The loop waits for pipediag too, which training does not do.
            own = min(waited, cost.own / max(1, self._workers))
            self._open.append((seconds - own, waited - own, cost.wall, beside))
            self.seen += 1
            if len(self._open) >= self._size:
                self._close()

    def _close(self) -> None:
        steps, self._open = self._open, []
        seconds, waited, made, beside = (sum(step[i] for step in steps) for i in range(4))
        if seconds > 0:
            each = round(1000 * made / len(steps), 4)
            seen = {"beside_ms": round(1000 * beside / len(steps), 4)} if beside else {}
            self._blocks.append(Observed(len(steps), seconds, min(waited, seconds), each, self._attempt, seen))
