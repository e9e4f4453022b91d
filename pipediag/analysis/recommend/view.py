"""Define the rules' view of a run, and their shared helpers."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace

from ...session import BatchFacts, Inside, Leaf, Link, Loader, Place, Session
from ...session.remedies import listed
from ..diagnosis import Recommendation, Stage, Verdict
from ..numbers.intervals import Interval
from ..numbers.ladder import LadderView
from ..numbers.loop_and_workers import OF_THE_WORKERS, Work
from ..trials.remedy import outcomes
from ..whatif import Change, WhatIf, savings
from ..words import number, percent


@dataclass(frozen=True)
class View:
    """One run, as every rule sees it."""

    ladder: LadderView
    costs: list[Stage]  # stages of the input pipeline, costliest first
    verdict: Verdict
    whatif: WhatIf
    between_ms: float  # that the loop pays between its steps, spread over them

    @property
    def session(self) -> Session:
        return self.ladder.session

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
        """A worker's time for a batch, if each transform's part of it is known; else None."""
        work = self.whatif.work
        return work if work is not None and len(work.links) == len(self.session.links) else None

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def device(self) -> str:
        return self.session.device_type

    @property
    def seen(self) -> dict[str, float]:
        """The evidence under the baseline."""
        return self.ladder.evidence("baseline")

    @property
    def workers_stage(self) -> str:
        """The costliest of the workers' stages."""
        return next((cost.stage for cost in self.costs if cost.stage in OF_THE_WORKERS), "load")

    @property
    def in_the_loader(self) -> str:
        return in_the_loader(self.loader)

    def per_sample(self, ms: float) -> str:
        """Return a part of a worker's time for a batch as text, per sample if the batch size is known."""
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
        startup_ms: float = 0.0,
        at_most: bool = False,
    ) -> Recommendation:
        """Return a recommendation.

        ``change`` may also be the speedup itself, or None if it cannot be predicted. The speedup by a :class:`Change`
        includes what the loop pays between its steps, which stays. ``startup_ms`` is the part of an epoch's start, for
        each step, that another speedup includes. With ``at_most``, ``change`` is all that a change could save.
        """
        base = self.whatif.base
        predicted = self.whatif.faster(change) if isinstance(change, Change) else change
        if isinstance(change, Change) and predicted is not None and measured is None:  # of the step alone
            startup_ms = self.between_ms
            predicted = predicted.inverse(base).shifted(startup_ms).inverse(base + startup_ms)
        made = Recommendation(id, title, stage, predicted, measured, list(evidence), how, risk, at_most=at_most)
        if made.gain is None or at_most:
            return made
        model = change if isinstance(change, Change) else Change()
        workers = self.whatif.workers_needed(model) if measured is None else None
        here, length = model.cores is None, self.loader.epoch
        saved = savings(made.gain, base, length, startup_ms=startup_ms, workers=workers, same_machine=here)
        return replace(made, savings=saved)


def in_the_loader(loader: Loader | None) -> str:
    """Return the place to set loader options, as text after an option."""
    return f"in the DataLoader{f' that is iterated at {loader.where}' if loader is not None and loader.where else ''}"


#: Note for a prediction that is only a bound.
ALL = "the gain if all of it were saved; how much a change saves is not known"


def bytes_text(nbytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{number(nbytes / size)} {unit}"
    return f"{nbytes:.0f} B"


def s(subjects: Sized) -> str:
    """Return the ending of the verb: "s" for a single subject."""
    return "s" if len(subjects) == 1 else ""


def batch_text(leaves: Sequence[Leaf]) -> str:
    """Return tensors of the batch by their paths, as text."""
    return listed([f"batch{leaf.path}" for leaf in leaves])


def leaf_text(leaf: Leaf) -> str:
    """Return a tensor of the batch by its path, dtype, shape and size, as text."""
    shape = "x".join(map(str, leaf.shape)) or "a number"
    return f"batch{leaf.path} ({leaf.dtype}, {shape}, {bytes_text(leaf.nbytes)})"


def at_line(place: Link | Place | None) -> str:
    """Return the line of a piece of code as the beginning of an instruction; "" if it is a library's."""
    if place is None:
        return ""
    where = "" if place.library else place.where
    where = where or (place.made if isinstance(place, Place) else "")
    return f"{where}: " if where else ""


def measured_first(session: Session) -> str:
    """Return how to measure a remedy before it is written into a script; "" if remedies were tried, or without one."""
    return "" if outcomes(session) or not session.script.argv else "; pipediag analyze --apply measures it first"


def share_text(part: float, whole: float) -> str:
    return percent(part / whole if whole > 0 else 0.0)
