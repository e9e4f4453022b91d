"""Define the ranks of a distributed job, and the trials that treat some of them differently."""

from __future__ import annotations

from dataclasses import dataclass, field

from .windows import MOST_STEPS, check_timed

#: Most processes of a distributed job.
_MOST_RANKS = 1 << 16


@dataclass
class Rank:
    """One process of a distributed job: where it runs, and what the input of its unmodified loop does."""

    rank: int
    world_size: int
    host: str = ""
    local_rank: int | None = None
    device: str = ""
    cpus: int = 0  # of the host
    cores: float = 0.0  # number of these that the process may use
    affinity: str = ""  # which, as Linux lists them (``0-15,32-47``); empty if unknown
    numa_node: int | None = None  # that holds them all
    storage: str = ""  # the file system of the data, if known
    where: str = ""
    workers: int = 0
    step_ms: float | None = None  # milliseconds per step; None if not measured
    wait_ms: float | None = None  # the part of it in which this rank waits for its own loader
    worker_ms: float | None = None  # a worker's time per batch
    shares: dict[str, float] = field(default_factory=dict)  # of a worker's time by stage
    ended: str = ""  # how the rank ended, if it ended before the others

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size <= _MOST_RANKS:
            raise ValueError(f"rank {self.rank} of {self.world_size}")
        counts = (self.cpus, self.cores, self.workers, self.local_rank or 0)
        times = (self.step_ms, self.wait_ms, self.worker_ms)
        if not all(0 <= one <= MOST_STEPS for one in (*counts, *(ms for ms in times if ms is not None))):
            raise ValueError(f"a figure of rank {self.rank}")
        if not all(0 <= share <= 1 for share in self.shares.values()):
            raise ValueError(f"a share of rank {self.rank}")


@dataclass
class RankTrial:
    """One timed stretch of a distributed job in which some ranks were treated differently from the others."""

    fed: list[int]  # got batches from a cache on their device; the others trained unchanged
    delayed: list[int]  # each of their steps was made longer
    delay_ms: float  # by this
    round: int
    steps: int
    seconds: float
    attempt: int = 1

    def __post_init__(self) -> None:
        check_timed("a trial of ranks", self.steps, self.seconds)
        for ranks in (self.fed, self.delayed):
            if len({*ranks}) < len(ranks) or not all(0 <= rank < _MOST_RANKS for rank in ranks):
                raise ValueError("a trial of impossible ranks")
        if not 0 <= self.delay_ms <= MOST_STEPS:
            raise ValueError(f"a delay of {self.delay_ms:g} ms")
