"""Count the threads that want to run, decide whether fewer of torch's are worth a trial, and judge the trial.

Torch splits an operation among as many threads as there are cores, and the operation ends when the last of them has
finished. If other processes use the cores, every operation waits until each thread has had one. The trial runs the loop
as it is, under the rung :data:`FEWER_THREADS`, with no more threads than cores are left, in turns with the baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...session import FEWER_THREADS, Session
from ..numbers.chain import grains_of
from ..numbers.foreign_load import foreign_cores, mean_account
from ..numbers.hot_lines import does
from ..numbers.intervals import Interval
from ..numbers.paired_windows import LEAST, paired_ratio
from .remedy import paired

#: Libraries whose transforms call OpenCV.
_ON_OPENCV = ("albumentations.", "imgaug.")
_LIMITS = {"opencv": "cv2.setNumThreads(1)", "torch": "torch.set_num_threads(1)"}
#: Share of a step for which one of torch's threads waits for a core, above which fewer threads are tried.
_QUEUED = 0.1
#: Number of rounds of the trial, and the fewest that allow a judgement.
_ROUNDS = 3


@dataclass(frozen=True)
class Threads:
    """Threads that want to run."""

    workers: int
    each: int  # in every worker
    library: str  # whose threads these are
    own: int  # in the training process
    cores: float  # number that all of them may use; infinite if unknown

    @property
    def exceed(self) -> bool:
        """True if more threads than cores want to run."""
        return self.workers * self.each + self.own > self.cores

    @property
    def can_be_fewer(self) -> bool:
        """True if more threads than cores want to run, and not only one in each process."""
        return self.exceed and (self.each > 1 or self.own > 1)

    @property
    def own_share(self) -> int:
        """Number of threads for the training process that leaves a core to each worker."""
        return max(1, int(self.cores) - self.workers)

    @property
    def limit(self) -> str:
        """The call that limits a worker's threads to one."""
        return _LIMITS.get(self.library, f"limiting {self.library}'s threads to 1")

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        each = "1 thread" if self.each == 1 else f"{self.each} {self.library} threads"
        own = "1 thread" if self.own == 1 else f"{self.own} threads"
        return f"{workers} with {each} each and the training process with {own} share {self.cores:g} cores"


def wanting_to_run(session: Session) -> Threads:
    """Return the threads that want to run; those of OpenCV only if the samples call it."""
    each_of = dict(session.inside.threads) if session.inside else {}
    lines = session.inside.lines if session.inside else []
    calls_opencv = any(does(line, lambda name: name.startswith("cv2.")) for line in lines) or any(
        module.startswith(_ON_OPENCV) for link in session.links for module, _ in grains_of(link)
    )
    if not calls_opencv:  # its threads run nowhere else
        each_of.pop("opencv", None)
    library, each = max(each_of.items(), key=lambda item: item[1], default=("", 1))
    own = int(session.environment.get("threads", {}).get("torch", 1))
    return Threads(session.workers, each, library, own, float(session.cores or math.inf))


@dataclass(frozen=True)
class Trial:
    """What fewer threads gained."""

    threads: int  # number of torch's threads in the trial
    before: int  # the same in the script as it is
    speedup: Interval  # over the script as it is, paired round by round
    rounds: int  # number of rounds that have both

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
