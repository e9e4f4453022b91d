"""Recommend changes that make the training loop faster, with the gain that this run's numbers predict.

Each rule reads a :class:`~.view.View` of the run and returns a recommendation, or None if it lacks the evidence. The
model in :mod:`pipediag.analysis.whatif` makes the predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...session import Session
from ..diagnosis import Recommendation, Stage, Verdict
from ..ladder import LadderView
from ..sentences import fed, number, percent_of, shown, unfed
from ..thresholds import RESOLUTION, WORTH
from ..waterfall import input_stages
from ..whatif import what_if
from . import loading, model, ranks, transfer, transforms, tried, workers
from .view import View

RULES: tuple[Callable[[View], Recommendation | None], ...] = (
    ranks.late_rank,
    transforms.offload,
    transforms.reorder,
    transforms.precompute,
    transforms.rewrite,
    transforms.collate,
    transfer.overlap,
    transfer.pin_memory,
    transfer.unread,
    transfer.as_bytes,
    transfer.low_precision,
    transfer.pack,
    transfer.padding,
    transfer.handoff,
    loading.storage,
    loading.decode,
    tried.settings,
    workers.more_workers,
    workers.prefetch,
    workers.persistent_workers,
    workers.threads,
    workers.fewer_workers,
    workers.more_cores,
    model.frozen_prefix,
    model.compute,
)


def recommend(ladder: LadderView, pieces: list[Stage], verdict: Verdict) -> tuple[list[Recommendation], str]:
    """Return the worthwhile changes, largest gain first; and if none concerns the input pipeline, why.

    A recommendation is left out if the whole interval of its gain lies below :data:`WORTH`. Those with an unknown gain
    come last.
    """
    numbers = what_if(ladder)
    if numbers is None:
        return [], _unknown(ladder.session, verdict)
    view = View(ladder, input_stages(ladder, pieces), verdict, numbers)
    made = [one for rule in RULES if (one := rule(view)) is not None]
    found = sorted((one for one in made if one.gain is None or one.gain.high >= WORTH), key=_rank)
    if any(one.stage != "compute" for one in found):
        return found, ""
    return found, _nothing(view)


def _rank(one: Recommendation) -> float:
    """Return the sort key: the gain rounded to 0.01, so that gains at the ceiling keep the order of the rules."""
    return math.inf if one.gain is None else -round(one.gain.value, 2)


def _unknown(session: Session, verdict: Verdict) -> str:
    """Return why nothing is recommended if the loop was not fed from a cache."""
    if verdict.bottleneck == "inconclusive" or verdict.starved is None:
        return f"Nothing can be recommended yet. {verdict.sentence}"
    if verdict.bottleneck == "none":
        return f"Nothing to gain here, because data costs {percent_of('a step', verdict.starved)}."
    return f"No gain can be predicted: {unfed(session)}."


def _nothing(view: View) -> str:
    """Return why nothing can be gained from the input pipeline, or why no gain is known."""
    verdict = view.verdict
    if verdict.bottleneck == "inconclusive":
        return f"Nothing can be recommended yet. {verdict.sentence}"
    base, compute = view.whatif.base, number(view.whatif.compute)
    told = f"{number(base)} ms a step with the loader, {compute} ms {fed(view.ladder)}"
    most = view.costs[0] if view.costs else None
    if most is not None and most.ms.value > RESOLUTION * base:
        told += f", and the largest part is {shown(most.stage)} with {number(most.ms.value)} ms"
    if verdict.bottleneck == "none" and verdict.starved is not None:
        share = percent_of("a step", verdict.starved)
        return f"Nothing to gain here, because data costs {share}: {told}."
    return f"The measurements do not show what would help: {told}."
