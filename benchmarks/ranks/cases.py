"""List the jobs: how many ranks, what each costs, and which rank holds the others, if one does."""

from __future__ import annotations

from dataclasses import dataclass, fields

#: Samples in a batch.
BATCH = 8
#: Options that only the late rank's value is given for.
_OF_LATE = ("late_sample_ms", "late_length", "late_step_ms", "late_workers")


@dataclass(frozen=True)
class Case:
    """A job. ``kind`` is what makes one rank late, or what all ranks have in common if none is.

    ``budget`` is the seconds for the analysis, if the usual ones are too few for the trials. The others are options of
    the script. Those that begin with ``late`` concern the rank ``late``.
    """

    name: str
    kind: str
    ranks: int
    step_ms: float = 30.0
    sample_ms: float = 2.0
    transform_ms: float = 0.0
    workers: int = 2
    noisy: bool = False
    late: int | None = None
    late_sample_ms: float | None = None
    late_length: int | None = None
    late_step_ms: float | None = None
    late_workers: int | None = None
    budget: float | None = None

    @property
    def holds(self) -> str:
        """What of the late rank is late: ``input`` or ``step``; empty if no rank is late."""
        return "" if self.late is None else "step" if self.late_step_ms is not None else "input"

    @property
    def arguments(self) -> list[str]:
        """The script's arguments."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        shown: list[str] = []
        for name, value in given.items():
            if name in ("name", "kind", "ranks", "budget") or value is None or value is False:
                continue
            shown += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return shown

    def expected_ms(self, cached: bool = False) -> float:
        """Return about how many milliseconds a step of the job takes."""
        slowest = self._rank_ms(False, cached)
        return slowest if self.late is None else max(slowest, self._rank_ms(True, cached))

    def _rank_ms(self, late: bool, cached: bool) -> float:
        sample, length, step, workers = (getattr(self, name) if late else None for name in _OF_LATE)
        own_step = self.step_ms if step is None else step
        own_sample = self.sample_ms if sample is None else sample
        batch = BATCH * (own_sample + self.transform_ms * (1 if length is None else length / 64))
        count = self.workers if workers is None else workers
        if cached:
            return own_step
        return max(own_step, batch / count) if count else own_step + batch


CASES = (
    # One rank holds the others.
    Case("storage-2-ranks", "storage", 2, late=1, late_sample_ms=20),
    Case("storage-3-ranks", "storage", 3, late=0, late_sample_ms=15),
    Case("storage-4-ranks", "storage", 4, step_ms=40, late=2, late_sample_ms=16),
    Case("workers-1-of-4", "workers", 2, sample_ms=7, workers=4, late=0, late_workers=1),
    Case("workers-1-of-3", "workers", 3, step_ms=40, sample_ms=9, workers=3, late=1, late_workers=1),
    Case("workers-none-of-2", "workers", 4, sample_ms=3, late=3, late_workers=0),
    Case("longer-2-ranks", "longer samples", 2, transform_ms=3, late=0, late_length=320),
    Case("longer-3-ranks", "longer samples", 3, transform_ms=3, late=2, late_length=256),
    Case("longer-4-ranks", "longer samples", 4, step_ms=40, transform_ms=4, late=1, late_length=256),
    Case("step-2-ranks", "slower step", 2, late=1, late_step_ms=60),
    Case("step-3-ranks", "slower step", 3, step_ms=40, late=0, late_step_ms=70, budget=60),
    Case("step-4-ranks", "slower step", 4, step_ms=40, late=2, late_step_ms=60, budget=60),
    # No rank does.
    Case("starved-2-ranks", "all starve", 2, sample_ms=18),
    Case("starved-3-ranks", "all starve", 3, sample_ms=15),
    Case("starved-4-ranks", "all starve", 4, step_ms=40, sample_ms=20),
    Case("fed-2-ranks", "none starves", 2),
    Case("fed-3-ranks", "none starves", 3, step_ms=40, sample_ms=4),
    Case("fed-4-ranks", "none starves", 4, step_ms=40),
    Case("compute-2-ranks", "long steps", 2, step_ms=100, sample_ms=4),
    Case("compute-3-ranks", "long steps", 3, step_ms=120, sample_ms=10),
    Case("compute-4-ranks", "long steps", 4, step_ms=150, sample_ms=4),
    Case("noisy-2-ranks", "noisy samples", 2, sample_ms=12, noisy=True),
    Case("noisy-3-ranks", "noisy samples", 3, step_ms=40, sample_ms=6, noisy=True),
    Case("noisy-4-ranks", "noisy samples", 4, step_ms=40, sample_ms=16, noisy=True),
)
