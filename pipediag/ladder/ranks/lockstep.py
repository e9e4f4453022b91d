"""Let the ranks of a distributed job take every step under the same rung.

The ranks wait for each other in each step, so a rung is measured only if all of them are under it. Rank 0 leads: it
grants steps, and the other ranks follow. A step is named by its epoch and its position in the epoch, because that is
what the ranks of a job have in common. Grants go through a key-value store, never through the job's process groups.
They are made ahead, so that no rank waits for another inside a window.

A rank that finds no grant for its next step waits for one, but not for long: if the ranks ask for different numbers of
batches, rank 0 may itself be waiting for this rank. It then trains unchanged until it finds a grant again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from ...clock import Clock
from ...session import REMEDIES, Rank, is_rung
from ...session.codec import build, dumps, loads
from .shared_store import Store

_T = TypeVar("_T")

#: What each rank prepares before it needs cached batches; see :attr:`Activity.prepares`.
CACHES = "caches"
#: Key in the store of rank 0's number of its epoch.
EPOCH = "epoch"
#: Maximum seconds that a rank waits for a grant; rank 0 makes one before it does anything that takes long. Each time
#: that none comes, the next wait is half as long, down to the second figure.
_PATIENCE, _LEAST_PATIENCE = 2.0, 0.05
#: Maximum seconds between two polls of the store.
_LATER = 5e-3
#: Maximum seconds that rank 0 waits for the other ranks to join, and to read that the analysis is over.
_JOINING, _LEAVING = 5.0, 2.0
#: Largest values in a message: positions and numbers of activities and ranks, and seconds that a step is made longer.
_MOST, _LONGEST_DELAY = 10**9, 60.0
#: Characters that a message may add to a report.
_MOST_TEXT = 300
STRANGE_MESSAGE = {
    "code": "strange-message",
    "message": "a message of another rank was not of the kind that the ranks send, and was ignored",
    "help": "start all ranks with the same version of pipediag; nobody else can write what they accept",
}


@dataclass(frozen=True)
class Activity:
    """What the ranks do for some steps."""

    number: int = 0  # counts the activities of the job
    #: What the loop of each rank in ``fed`` receives; the loops of the others receive their own batches.
    rung: str = "baseline"
    fed: list[int] | None = None  # None for all ranks
    window: int = 0  # number of steps that rank 0 times, or 0
    round: int | None = None  # of the ladder's window; None if the time belongs to no window of the ladder
    delayed: list[int] = field(default_factory=list)  # ranks whose steps are made longer by ``delay`` seconds
    delay: float = 0.0
    #: What each rank prepares before its next step: :data:`CACHES`, or the remedy of a rung; else empty.
    prepares: str = ""
    ends: bool = False  # the epoch ends here although no rank knows its length

    def __post_init__(self) -> None:
        ranks = [*self.delayed, *(self.fed or [])]
        if not all(0 <= one <= _MOST for one in (*ranks, self.number + 1, self.window, self.round or 0)):
            raise ValueError("a number is out of range")
        if not 0 <= self.delay <= _LONGEST_DELAY:
            raise ValueError(f"a delay of {self.delay} s")
        if not is_rung(self.rung) or self.prepares not in ("", CACHES, *REMEDIES):
            raise ValueError(f"no rung: {self.rung!r:.40}, {self.prepares!r:.40}")

    def rung_of(self, rank: int) -> str:
        return self.rung if self.fed is None or rank in self.fed else "baseline"

    def delay_of(self, rank: int) -> float:
        """Return the seconds by which this rank's steps are made longer."""
        return self.delay if rank in self.delayed else 0.0


@dataclass(frozen=True)
class Grant:
    """The positions of an epoch at which the ranks do something: from ``begin`` on, before ``end``."""

    begin: int
    end: int
    activity: Activity

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end <= _MOST:
            raise ValueError(f"steps {self.begin} to {self.end}")


def comes_true(condition: Callable[[], bool], until: float, clock: Clock) -> bool:
    """Wait for a condition of a store; return whether it comes true before the clock shows ``until``."""
    while not condition():
        if clock.now() >= until:
            return False
        clock.sleep(_LATER)
    return True


class Lockstep:
    """A process that trains alone, and has nobody to agree with. Base class for the ranks of a job."""

    rank, world_size = 0, 1

    def __init__(self) -> None:
        self.activity = Activity()
        self.warn: Callable[[dict[str, str]], None] = lambda warning: None

    @property
    def in_job(self) -> bool:
        return self.world_size > 1

    def do(self, rung: str, **facts: Any) -> None:
        """Begin an activity with the next step; ``facts`` are attributes of :class:`Activity`."""

    def reserve(self, steps: int, ahead: int) -> None:
        """Announce ``steps`` steps of the current activity, to be granted ``ahead`` at a time, before they are needed.

        With ``ahead`` 1, each step is granted only when the loop takes it.
        """

    def comes_to(self, epoch: int, position: int) -> None:
        """Note that the loop is about to take this step; the end of an epoch counts as one."""

    def left(self, epoch: int, position: int) -> int:
        """Return the number of granted steps from this one on: they must be taken before another activity begins."""
        return 0

    def end_epoch(self, epoch: int, position: int) -> None:
        """Let all ranks end their epoch instead of taking this step; see :attr:`Activity.ends`."""

    def unserved(self, rung: str) -> str:
        """Return why another rank could not serve ``rung``, or ""."""
        return ""

    def stop(self) -> dict[int, str]:
        """End the analysis in all ranks at the step that comes next; return the reports of the others."""
        return {}


class InJob(Lockstep):
    """A rank of a job, which reads what the others have written. What is not of the kind expected is ignored."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def _built(self, cls: type[_T], text: str) -> _T | None:
        """Return the object that a message describes, or None if it is a strange one."""
        try:
            return build(cls, loads(text))
        except (TypeError, ValueError, RecursionError):
            self.warn(STRANGE_MESSAGE)
            return None


class Leader(InJob):
    """Rank 0, which grants the steps."""

    def __init__(self, store: Store, world_size: int, clock: Clock) -> None:
        super().__init__(store)
        self.world_size = world_size
        self._clock = clock
        self._epoch, self._end, self._grants = -1, 0, 0
        self._reserved = 0  # steps of the activity that are not granted yet
        self._ahead = 1

    def do(self, rung: str, **facts: Any) -> None:
        self.activity = Activity(self.activity.number + 1, rung, **facts)
        self._reserved = 0

    def reserve(self, steps: int, ahead: int) -> None:
        self._reserved, self._ahead = steps, max(1, ahead)

    def comes_to(self, epoch: int, position: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._end, self._grants = epoch, position, 0
            self._store.set(EPOCH, str(epoch))
        if position >= self._end:
            self._grant(position)
        elif position == self._end - 1 and self._reserved and self._ahead > 1:
            self._grant(self._end)

    def _grant(self, begin: int) -> None:
        steps = max(1, min(self._reserved, self._ahead))
        self._reserved = max(0, self._reserved - steps)
        self._end = begin + steps
        grant = Grant(begin, self._end, self.activity)
        self._store.set(_key(self._epoch, self._grants), dumps(asdict(grant)))
        self._grants += 1

    def left(self, epoch: int, position: int) -> int:
        return self._end - position if epoch == self._epoch else 0

    def end_epoch(self, epoch: int, position: int) -> None:
        going_on, reserved = replace(self.activity, number=self.activity.number + 2), self._reserved
        self.activity, self._reserved = Activity(self.activity.number + 1, ends=True), 0
        self.comes_to(epoch, position)
        self.activity, self._reserved = going_on, reserved

    def unserved(self, rung: str) -> str:
        key = f"unserved/{rung}"
        return self._store.get(key)[:_MOST_TEXT] if self._store.has(key) else ""

    def stop(self) -> dict[int, str]:
        self._store.set("stop", "1")
        self._all_have("report", _LEAVING)
        return self._reported("report")

    def all_joined(self) -> bool:
        """Wait some seconds until every other rank has joined; return whether all have."""
        return self._all_have("joined", _JOINING)

    def notes(self) -> dict[int, Rank]:
        """Return the latest note of each other rank about itself."""
        notes = {rank: self._built(Rank, note) for rank, note in self._reported("note").items()}
        return {rank: replace(note, rank=rank) for rank, note in notes.items() if note is not None}

    def _reported(self, what: str) -> dict[int, str]:
        keys = {rank: f"{what}/{rank}" for rank in range(1, self.world_size)}
        return {rank: self._store.get(key) for rank, key in keys.items() if self._store.has(key)}

    def _all_have(self, what: str, seconds: float) -> bool:
        """Wait until every other rank has set ``what``; return whether all have, in time."""
        left = [f"{what}/{rank}" for rank in range(1, self.world_size)]

        def none_left() -> bool:
            while left and self._store.has(left[-1]):
                left.pop()
            return not left

        return comes_true(none_left, self._clock.now() + seconds, self._clock)


class Superseded(Exception):
    """The next step belongs to another activity than the current one."""


class Stopped(Exception):
    """The analysis is over: rank 0 has ended it, or is gone."""


class Follower(InJob):
    """Any other rank, which waits for grants. It counts its epochs from 0, the one in which it joins."""

    def __init__(self, store: Store, rank: int, world_size: int, clock: Clock) -> None:
        super().__init__(store)
        self.rank, self.world_size = rank, world_size
        self._clock = clock
        self._epoch, self._read = -1, 0
        self._begin = self._end = 0
        self._granted = Activity()
        self._attached, self._patience = True, _PATIENCE
        self._offset = int(store.get(EPOCH))  # rank 0's number of that epoch
        store.set(f"joined/{rank}", "")

    def comes_to(self, epoch: int, position: int) -> None:
        """Wait for the grant of this step.

        Raises:
            Superseded: it is for another activity, which is the current one from now on.
            Stopped: there is none, because the analysis is over.
        """
        activity = self._granted_to(epoch + self._offset, position)
        if activity.number != self.activity.number:
            self.activity = activity
            raise Superseded

    def _granted_to(self, epoch: int, position: int) -> Activity:
        if epoch != self._epoch:
            self._epoch, self._read, self._begin, self._end = epoch, 0, 0, 0
            self._attached = True  # ranks with different numbers of batches begin the next epoch together
        with _leader_there():
            while position >= self._end:
                if not self._awaited(_key(epoch, self._read)):
                    return Activity(number=-1)
                grant = self._built(Grant, self._store.get(_key(epoch, self._read)))
                self._read += 1
                if grant is not None:
                    self._begin, self._end, self._granted = grant.begin, grant.end, grant.activity
        return self._granted if position >= self._begin else Activity(number=-1)

    def _awaited(self, key: str) -> bool:
        """Wait until the store has ``key``; return False if it did not come in time.

        Raises:
            Stopped: the analysis is over.
        """
        since = self._clock.now()
        while not self._store.has(key):
            if self._store.has("stop"):
                raise Stopped
            if not self._attached:
                return False
            if self._clock.now() - since >= self._patience:
                self._attached, self._patience = False, max(_LEAST_PATIENCE, self._patience / 2)
                return False
            self._store.wait(_LATER, self._clock)
        self._attached = True
        return True

    @property
    def is_stopped(self) -> bool:
        try:
            return self._store.has("stop")
        except ConnectionError:
            return True

    def cannot_serve(self, rung: str, why: str) -> None:
        """Tell rank 0 why this rank cannot serve a rung.

        Raises:
            Stopped: rank 0 is gone.
        """
        with _leader_there():
            self._store.set(f"unserved/{rung}", f"rank {self.rank}: {why}")

    def leave(self, report: str) -> None:
        """Hand in a report at the end, if rank 0 is still there."""
        with suppress(ConnectionError):
            self._store.set(f"report/{self.rank}", report)

    def note(self, facts: dict[str, Any]) -> None:
        """Tell rank 0 the facts about this rank's input.

        Raises:
            Stopped: rank 0 is gone.
        """
        with _leader_there():
            self._store.set(f"note/{self.rank}", dumps(facts))


@contextmanager
def _leader_there() -> Iterator[None]:
    try:
        yield
    except ConnectionError as error:
        raise Stopped from error


def _key(epoch: int, number: int) -> str:
    return f"grant/{epoch}/{number}"
