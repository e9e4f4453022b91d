"""Record single steps as they happen, with the batches that workers deliver meanwhile. The number of steps is limited.

Nothing is timed here: the callers pass on the times that they read anyway, on the clock that all processes share.
"""

from __future__ import annotations

from typing import Protocol

from ..session import UNTOUCHED, Session, Stretch
from .workers.delivery import Delivery

#: Maximum steps recorded in a session, under one rung in one pass, and at a time.
_MOST, _PER_RUNG, _AT_A_TIME = 4000, 300, 100
#: The first recorded rungs leave steps for the later ones: each may take this share of those left.
_SHARE_OF_LEFT = 1 / 8


class Queue(Protocol):
    """The queue that a loop takes its batches from."""

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
        room = min(_AT_A_TIME, _PER_RUNG - of_rung, int(_SHARE_OF_LEFT * (_MOST - used)))
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
            self._finished.append(self._rounded(done))
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

    def _rounded(self, raw: Stretch) -> Stretch:
        """Return the stretch with its times in seconds since the beginning, rounded to 0.01 ms: they go into a file."""
        for times in (raw.asked, raw.got, raw.made_from, raw.made_until):
            times[:] = [round(time - self._began, 5) for time in times]
        raw.collate_ms[:] = [round(ms, 2) for ms in raw.collate_ms]
        raw.ended = round(raw.ended - self._began, 5)
        return raw
