"""What the rules look at, and the small things that they share."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass

from ...session import BatchFacts, Inside, Leaf, Link, Loader, Place, Session
from ..diagnosis import Recommendation, Stage, Verdict
from ..intervals import Interval
from ..ladder import LadderView
from ..sentences import number, percent
from ..whatif import Change, WhatIf, Work

#: Stages that the workers do, or the training process in their place.
_OF_THE_WORKERS = ("collate", "transform", "load", "storage")


@dataclass(frozen=True)
class View:
    """One run, as every rule sees it."""

    session: Session
    ladder: LadderView
    pieces: list[Stage]
    verdict: Verdict
    whatif: WhatIf

    @property
    def loader(self) -> Loader:
        return self.session.loader or Loader()

    @property
    def inside(self) -> Inside:
        return self.session.inside or Inside()

    @property
    def batch(self) -> BatchFacts:
        return self.session.batch or BatchFacts()

    @property
    def work(self) -> Work | None:
        """What a worker does for a batch, where it is known how much of it each transform takes."""
        work = self.whatif.work
        return work if work is not None and len(work.links) == len(self.session.links) else None

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def device(self) -> str:
        """The device as it is named in code."""
        return str(self.session.device.get("type", "cpu"))

    @property
    def cores(self) -> float | None:
        """Cores that the script may use; None where that is not known."""
        cores = self.session.environment.get("cores")
        return float(cores) if cores else None

    @property
    def seen(self) -> dict[str, float]:
        """What was seen beside the clock under the baseline."""
        return self.ladder.evidence("baseline")

    @property
    def workers_stage(self) -> str:
        """The costliest of the stages that are the workers' to do."""
        theirs = [piece for piece in self.pieces if piece.stage in _OF_THE_WORKERS]
        return max(theirs, key=lambda piece: piece.ms.value).stage if theirs else "load"

    @property
    def in_the_loader(self) -> str:
        """Where options of the loader are set, behind an option."""
        return f"in the DataLoader{f' that is iterated at {self.loader.where}' if self.loader.where else ''}"

    def per_sample(self, ms: float) -> str:
        """A part of a worker's time for a batch, for each sample where the batch is known."""
        return f"{number(ms / self.whatif.batch)} ms a sample" if self.whatif.batch else f"{number(ms)} ms a batch"

    def made(
        self,
        id: str,
        title: str,
        stage: str,
        change: Change | Interval | None,
        evidence: Sequence[str],
        how: str,
        risk: str,
        measured: Interval | None = None,
    ) -> Recommendation:
        """A recommendation. ``change`` may also be the speedup itself, or None where it cannot be predicted."""
        predicted = self.whatif.faster(change) if isinstance(change, Change) else change
        return Recommendation(id, title, stage, predicted, measured, list(evidence), how, risk)


#: Said of a change of which only a bound is known.
HALVED = "predicted for half of that; the upper end is without it"


def bytes_text(nbytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{number(nbytes / size)} {unit}"
    return f"{nbytes:.0f} B"


def named(one: Link | Place) -> str:
    return f"{one.name} ({one.where})" if one.where else one.name


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def s(subjects: Sized) -> str:
    """The ending of a verb that one subject wants: A take-s, A and B take."""
    return "s" if len(subjects) == 1 else ""


def batch_text(leaves: Sequence[Leaf]) -> str:
    """Tensors of the batch by their paths."""
    return listed([f"batch{leaf.path}" for leaf in leaves])


def leaf_text(leaf: Leaf) -> str:
    """A tensor of the batch by its path, type, shape and size."""
    shape = "x".join(map(str, leaf.shape)) or "a number"
    return f"batch{leaf.path} ({leaf.dtype}, {shape}, {bytes_text(leaf.nbytes)})"


def share_text(part: float, whole: float) -> str:
    return percent(part / whole if whole > 0 else 0.0)
