"""Find how many cores are busy under a rung, and how many threads want to run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...session import Session
from .chain import grains_of
from .hot_lines import does
from .ladder import LadderView

#: Share of the cores in use above which the machine counts as full.
FULL = 0.9
#: OpenCV's functions, and libraries whose transforms call them.
_OPENCV = "cv2."
_ON_OPENCV = ("albumentations.", "imgaug.")
_LIMITS = {"opencv": "cv2.setNumThreads(1)", "torch": "torch.set_num_threads(1)"}


def full(ladder: LadderView, rung: str) -> bool:
    """Return whether all cores are in use under a rung: any further work slows other work down."""
    return busy_cores(ladder, rung) >= FULL * (ladder.session.cores or math.inf)


def filled_by_others(ladder: LadderView, rung: str) -> bool:
    """Return whether other processes use more cores under a rung than the script with its workers; False if unknown."""
    used = ladder.evidence(rung).get("cores_used")
    return used is not None and busy_cores(ladder, rung) > 2 * used


def busy_cores(ladder: LadderView, rung: str) -> float:
    """Return the cores in use under a rung, of those the process may use; under a quota, only its own use counts."""
    seen, facts = ladder.evidence(rung), ladder.session.environment
    used = seen.get("cores_used", 0.0)
    return used if facts.get("cgroup_quota") else max(used, seen.get("cores_busy", 0.0))


@dataclass(frozen=True)
class Threads:
    """Threads that want to run: ``each`` of ``library`` in every worker, and ``own`` in the training process.

    ``cores`` is the number of cores that all of them may use; infinite if unknown.
    """

    workers: int
    each: int
    library: str
    own: int
    cores: float

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


def threads(session: Session) -> Threads:
    """Return the threads that want to run; those of OpenCV only if the samples call it."""
    each_of = dict(session.inside.threads) if session.inside else {}
    lines = session.inside.lines if session.inside else []
    calls_opencv = any(does(line, lambda name: name.startswith(_OPENCV)) for line in lines) or any(
        module.startswith(_ON_OPENCV) for link in session.links for module, _ in grains_of(link)
    )
    if not calls_opencv:  # its threads run nowhere else
        each_of.pop("opencv", None)
    library, each = max(each_of.items(), key=lambda item: item[1], default=("", 1))
    own = int(session.environment.get("threads", {}).get("torch", 1))
    return Threads(session.workers, each, library, own, float(session.cores or math.inf))
