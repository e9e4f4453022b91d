"""Decide whether fewer torch threads are worth a trial in the training process, and judge the trial.

Torch splits an operation among as many threads as there are cores, and the operation ends when the last of them has
finished. If other processes use the cores, every operation waits until each thread has had one. The trial runs the loop
as it is, under the rung :data:`FEWER_THREADS`, with no more threads than cores are left, in turns with the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...session import FEWER_THREADS, Session
from ..numbers.cores import threads as wanting_to_run
from ..numbers.foreign_load import foreign_cores, mean_account
from ..numbers.intervals import Interval
from ..numbers.paired_windows import LEAST, paired_ratio
from .remedy import paired

#: Share of a step for which one of torch's threads waits for a core, above which fewer threads are tried.
_QUEUED = 0.1
#: Number of rounds of the trial, and the fewest that allow a judgement.
_ROUNDS = 3


@dataclass(frozen=True)
class Trial:
    """What fewer threads gained.

    Attributes:
        threads, before: number of torch's threads in the trial, and in the script as it is.
        speedup: speedup over the script as it is, paired round by round.
        rounds: number of rounds that have both.
    """

    threads: int
    before: int
    speedup: Interval
    rounds: int

    @property
    def pays(self) -> bool:
        return self.rounds >= _ROUNDS and self.speedup.low > LEAST


def queued_share(session: Session) -> float:
    """Return the share of an unmodified step for which one of the threads beside the training thread waits for a core.

    0 without the kernel's counters.
    """
    windows = session.windows_of("baseline")
    account = mean_account(windows)
    step = sum(window.seconds for window in windows) / max(1, sum(window.steps for window in windows))
    return account.threads_queue_ms / (1000.0 * step) if account is not None and step > 0 else 0.0


def threads_to_try(session: Session) -> int | None:
    """Return the number of threads to try, as many as cores are left; None if no measurement speaks for fewer."""
    if trial := session.environment.get("fewer_threads"):
        return int(trial)
    now, windows = wanting_to_run(session).own, session.windows_of("baseline")
    if now < 2 or session.device_type != "cpu" or session.cores is None or queued_share(session) < _QUEUED:
        return None
    seen = windows[-1].evidence
    workers = max(0.0, seen.get("cores_used", 0.0) - seen.get("process_cpu", 0.0))
    left = max(1, int(session.cores - (foreign_cores(windows[-1]) or 0.0) - workers))
    return left if left < now else None


def next_rungs(session: Session) -> list[str]:
    """Return the rungs of the trial that need another window each; empty if it is decided or not worth making."""
    rung = session.rungs.get(FEWER_THREADS)
    if rung is None or not rung.available or threads_to_try(session) is None:
        return []
    rounds = len(paired(session, "baseline", FEWER_THREADS)[1])
    return ["baseline", FEWER_THREADS] if rounds < _ROUNDS else []


def outcome(session: Session) -> Trial | None:
    """Return the result of the trial, or None if there was none."""
    before, after = paired(session, "baseline", FEWER_THREADS)
    threads = threads_to_try(session)
    if not after or threads is None:
        return None
    return Trial(threads, wanting_to_run(session).own, paired_ratio(before, after), len(after))
