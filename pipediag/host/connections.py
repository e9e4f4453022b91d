"""Keep the connections of one pass: the child's, and one for each process that it has started for training.

Each process has its own session. One leads: its story says whether another pass is needed, and its progress is shown.
In a distributed job that is rank 0, in any other script the one process that is measured.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ..analysis.ranks.merging import job_session
from ..measure.schedule import Plan
from ..session import Loader, Rank, Session
from ..session.events import Cut, Elsewhere, FirstBatch, Member, Story, Wrote, read
from .channel import Listener, Receiver, wait_for_any
from .supervision import Outcome, Progress, Watch

#: Seconds that the child has to end once every process that was measured has.
_AFTERMATH = 2.0
_CUT_OFF = "another host of the job does not answer"
_ABRUPTLY = "it ended without a word, as a killed process does"


@dataclass
class Job:
    """What the passes measure."""

    session: Session  # of the leading process
    sessions: dict[int, Session] = field(default_factory=dict)  # one for every rank of a distributed job
    local: set[int] = field(default_factory=set)  # the ranks of this host

    def of_rank(self, rank: Rank, is_child: bool) -> Session:
        """Return the session of a rank; that of the first rank on this machine is the leading one."""
        self.local.add(rank.rank)
        if rank.rank not in self.sessions:
            leads = is_child or rank.rank == 0 or rank.local_rank == 0
            self.sessions[rank.rank] = self.session if leads else self.fresh()
        return self.sessions[rank.rank]

    def fresh(self) -> Session:
        main = self.session
        return Session(tool_version=main.tool_version, began=main.began, script=main.script)

    def whole(self) -> Session:
        """Return the session of the whole job, with the script and the warnings of the leading one."""
        whole = job_session(self.sessions or {0: self.session})
        whole.script = self.session.script
        for warning in self.session.warnings:
            whole.warn(warning.code, warning.message, warning.help)
        return whole

    def to_dict(self) -> dict[str, Any]:
        """Return the sessions for the order of a pass."""
        sessions = {str(rank): session.to_dict() for rank, session in self.sessions.items()}
        return {"session": self.session.to_dict(), "sessions": sessions, "fresh": self.fresh().to_dict()}


class Line:
    """One process that sends events.

    Events wait until it is known which session they belong to: the process may only launch others, be a rank, or train
    by itself.
    """

    def __init__(self, receiver: Receiver, watch: Watch, job: Job, is_child: bool) -> None:
        self.receiver, self.watch = receiver, watch
        self.is_child = is_child
        self.joined = time.monotonic()
        self.session = job.session
        self.pid = 0  # that of the child stays 0
        self.rank: int | None = None  # its number in a distributed job, if known
        self.failed: float | None = None  # when it ended with an error or abruptly
        self.error = ""  # how it failed, in words
        self.ended = False  # True if it has reported its end
        self.cut = False  # True if another host of its job does not answer any more
        self.measured: Rank | None = None
        self.trains = False  # by itself
        self._job = job
        self._waiting: list[tuple[str, Any]] | None = []

    @property
    def outcome(self) -> Outcome:
        return self.watch.outcome

    @property
    def precedence(self) -> tuple[int, int]:
        """The lowest leads: the first rank, else a process that trains by itself, else the one closest to training."""
        if self.measured is not None:
            return 0, self.measured.rank
        nearness = 2 if self.outcome.batches else 1 if self.outcome.story.optimizer_steps else 0
        return (1 if self.trains else 4 - nearness), 0 if self.is_child else 1

    def take(self, kind: str, data: dict[str, Any], claimed: bool, now: float) -> object:
        """Take in one event and return it. ``claimed`` is true if another process is measured already.

        Raises:
            TypeError, ValueError: the data is not of the kind.
        """
        event = read(kind, data)
        match event:
            case Member(pid, rank):
                self.pid = pid
                self.rank = self.rank if rank is None else rank
            case Rank():
                self.rank, self.measured = event.rank, event
                self.session = self._job.of_rank(event, self.is_child)
                self.settle()
            case Loader() if self._waiting is not None and not claimed:
                self.trains = True
                self.settle()
            case Cut():
                self.failed, self.error, self.cut = now, _CUT_OFF, True
            case Elsewhere(number, session):
                if number not in self._job.local:
                    self._job.sessions[number] = Session.from_dict(session)
            case Wrote():
                self._job.session.enter(kind, event)  # all processes share the facts of the script
            case Story():
                self.ended = True
                self.error = event.error
                if event.exit_code and self.rank is not None:  # the other ranks wait for it
                    self.error = event.said or f"it ended with exit code {event.exit_code}"
                self.failed = now if self.error else None
        self.watch.note(event)
        if self._waiting is not None:
            self._waiting.append((kind, event))
        else:
            self.session.enter(kind, event)
        return event

    def close(self, now: float) -> None:
        if not self.ended and not self.cut and not self.is_child:
            self.failed, self.error = now, _ABRUPTLY
        self.receiver.close()

    def settle(self) -> None:
        """Enter what has waited in the process's session."""
        waiting, self._waiting = self._waiting or [], None
        for kind, event in waiting:
            self.session.enter(kind, event)


class Lines:
    """All connections of one pass."""

    def __init__(
        self, pipe: Receiver, listener: Listener, plan: Plan, job: Job, progress: Progress, patience: float
    ) -> None:
        self._plan, self._job, self._progress, self._patience = plan, job, progress, patience
        self._listener = listener
        self._started = time.monotonic()
        self.was_ended = False  # True if the pass was overdue
        self._all = [self._line(pipe, is_child=True)]
        self._open = [*self._all]

    def _line(self, receiver: Receiver, is_child: bool) -> Line:
        watch = Watch(self._plan, self._job.session, self._patience, self._started)
        return Line(receiver, watch, self._job, is_child)

    @property
    def leader(self) -> Line:
        return min(self._all, key=lambda line: line.precedence)

    def take(self, seconds: float) -> None:
        """Take in what the processes send, and wait for it at most ``seconds``."""
        wait_for_any([self._listener.fd, *(line.receiver.fd for line in self._open)], seconds)
        for receiver in self._listener.accepted():
            line = self._line(receiver, is_child=False)
            self._all.append(line)
            self._open.append(line)
        now = time.monotonic()
        for line in self._open:
            leader = self.leader
            for kind, data in line.receiver.events():
                claimed = any(other.trains or other.measured for other in self._all if other is not line)
                event = line.take(kind, data, claimed, now)
                if self.leader is not leader and self.leader.outcome.batches:
                    leader = self.leader
                    self._progress(FirstBatch(), leader.session)
                if line is leader:
                    self._progress(event, line.session)
        gone = [line for line in self._open if line.receiver.gone]
        self._open = [line for line in self._open if not line.receiver.gone]
        for line in gone:
            line.close(now)

    def overdue(self) -> bool:
        """Return whether the time of the pass is over; True only once."""
        leader = self.leader
        if self.was_ended:
            return False
        if leader.outcome.stopped and leader not in self._open and not any(line.measured for line in self._open):
            leader.watch.hasten(_AFTERMATH)
        self.was_ended = leader.watch.overdue()
        return self.was_ended

    def signal(self, number: int) -> bool:
        """Send a signal to every process beside the child, as launchers may not pass it on; return whether any is."""
        pids = [line.pid for line in self._open if line.pid]
        for pid in pids:
            with suppress(OSError):  # it has ended
                os.kill(pid, number)
        return bool(pids)

    def without_a_rank(self) -> float:
        """Return the seconds since a rank failed that was not restarted; 0 if there is none.

        They are infinite if another host of the job does not answer: its ranks are not restarted.
        """
        if any(line.cut for line in self._all):
            return math.inf
        failed = [at for line in self._all if (at := line.failed) is not None and not self._restarted(line, at)]
        return time.monotonic() - min(failed) if failed else 0.0

    def _restarted(self, failed: Line, at: float) -> bool:
        """Return whether the rank that failed, or the whole job with other numbers, was started again.

        A rank that joins for the first time is only late. A launcher that starts the job again, perhaps with fewer
        ranks, ends those that the failure left.
        """
        ranks = [line for line in self._all if line.rank is not None and line is not failed]
        again = {line.rank for line in ranks if line.joined >= at}
        if failed.rank is None or failed.rank in again:
            return True
        survivors = [line for line in ranks if line.joined < at]
        return bool(again & {line.rank for line in survivors}) and not any(line in self._open for line in survivors)

    def close(self) -> Outcome:
        """Return the outcome of the leading process."""
        if not any(line.trains or line.measured for line in self._all):
            self._all[0].settle()
        leader = self.leader
        leader.watch.close()
        leader.outcome.trainers = list(dict.fromkeys(at for line in self._all for at in line.outcome.trainers))
        return leader.outcome

    def cause(self, story: Story) -> Story:
        """Return the story with the error of the process that failed first.

        A launcher only reports that one of its processes failed. If several fail at once, one was killed and the others
        lost their connection to it.
        """
        failed = [line for line in self._all[1:] if line.failed is not None]
        first = min(failed, key=lambda line: (line.failed, bool(line.outcome.story.error)), default=None)
        if first is None:
            return replace(story, error=story.error or self._all[0].outcome.story.error)
        own = first.outcome.story
        # A rung is not blamed for a process that was killed.
        rung = (own.rung or story.rung) if own.error else None
        error = first.error if first.rank is None else f"rank {first.rank}: {first.error}"
        return replace(story, error=error, refused=own.refused, making=own.making, rung=rung)

    def end(self) -> None:
        for line in self._open:
            line.receiver.close()
        self._listener.close()
