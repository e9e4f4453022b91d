"""Simulated jobs of several ranks, which answer trials as a real job would."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipediag.analysis.ranks.stragglers import Change
from pipediag.session import Loader, Rank, Session, Window

from ..made import tried


@dataclass
class Job:
    """Ranks that wait for each other in each step.

    ``paces`` are the milliseconds in which each rank's workers make a batch, ``steps`` those of its own step. Each
    figure varies from step to step with the standard deviation ``noise``, and the host's speed changes in phases by
    ``phase``. With ``shared`` cores, workers become faster if other ranks run none.
    """

    paces: Sequence[float]
    steps: Sequence[float]
    noise: float = 0.05
    phase: float = 0.1
    shared: bool = False
    seed: int = 1
    workers: int = 4
    device: str = "cuda"
    time: int = 0
    session: Session = field(init=False)
    ranks: list[Rank] = field(init=False)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self.session = Session(device={"type": self.device}, loader=Loader(num_workers=self.workers))
        everyone = Change(tuple(range(len(self.paces))))
        for round_ in range(4):
            for rung, change in (("device", everyone), ("baseline", Change())):
                self.session.windows.append(Window(rung, round_, 10, 10 * self.step(change, 10) / 1000, 10))
        self.ranks = [
            Rank(
                n, len(self.paces), device=f"cuda:{n}", workers=self.workers, worker_ms=self.workers * self._vary(pace)
            )
            for n, pace in enumerate(self.paces)
        ]

    def step(self, change: Change, steps: int) -> float:
        """Return the milliseconds of a step of the job, averaged over ``steps``."""
        self.time += 1
        slowed = 1 + self.phase * (self.time // 7 % 2)
        return slowed * sum(self._one(change) for _ in range(steps)) / steps

    def _one(self, change: Change) -> float:
        running = len(self.paces) - len(change.fed)
        share = running / len(self.paces) if self.shared else 1.0
        return max(
            max(self._vary(own), 0.0 if n in change.fed else share * self._vary(pace))
            + (change.delay_ms if n in change.delayed else 0.0)
            for n, (pace, own) in enumerate(zip(self.paces, self.steps, strict=True))
        )

    def _vary(self, ms: float) -> float:
        return ms * max(0.2, 1 + self._draw.gauss(0, self.noise))

    def analyse(self) -> int:
        """Make the trials that the analysis asks for; return their number."""
        count = tried(self.session, self.ranks, lambda change: self.step(change, 5))
        self.session.ranks = self.ranks
        return count
