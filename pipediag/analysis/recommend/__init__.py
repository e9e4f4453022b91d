"""What would make the training loop faster, with what this run says it would gain.

Each rule looks at a :class:`~.view.View` of the run and returns a recommendation, or None where its evidence is not
there. What a rule predicts comes from the model in :mod:`pipediag.analysis.whatif`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..diagnosis import Recommendation, Stage, Verdict
from ..ladder import LadderView
from ..sentences import number, percent, span
from ..thresholds import GATE
from ..whatif import WhatIf, what_if
from . import loading, model, transfer, transforms, workers
from .view import View

#: A change that saves less than the gate of a step is not worth making.
WORTH = 1.0 / (1.0 - GATE)

RULES: tuple[Callable[[View], Recommendation | None], ...] = (
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
    """What is worth changing, the largest predicted gain first; and why the input pipeline is not, where it is not.

    A recommendation is left out when all of its interval lies below what :data:`WORTH` asks for, or what was measured
    of it does. Those that cannot be predicted come last.
    """
    numbers = what_if(ladder)
    if numbers is None:
        return [], f"Nothing can be recommended yet. {verdict.sentence}"
    view = View(ladder.session, ladder, pieces, verdict, numbers)
    found = [made for rule in RULES if (made := rule(view)) is not None and _worth_it(made)]
    found.sort(key=_rank)
    if any(one.stage != "compute" for one in found):
        return found, ""
    return found, _nothing(numbers, pieces, verdict)


def _worth_it(one: Recommendation) -> bool:
    if one.measured is not None and one.measured.high < WORTH:
        return False
    return one.predicted is None or one.predicted.high >= WORTH


def _rank(one: Recommendation) -> float:
    """By predicted gain, to a hundredth: what the ceiling limits alike keeps the order of the rules."""
    if one.predicted is None:
        return math.inf
    return -round(one.predicted.value, 2)


def _nothing(numbers: WhatIf, pieces: list[Stage], verdict: Verdict) -> str:
    """Why nothing can be gained from the input pipeline, or nothing is known that would."""
    if verdict.bottleneck == "inconclusive":
        return f"Nothing can be recommended yet. {verdict.sentence}"
    base, compute = number(numbers.base), number(numbers.compute)
    told = f"{base} ms a step with the loader, {compute} ms with cached batches"
    costs = [piece for piece in pieces if piece.stage not in ("compute", "residual")]
    if costs:
        most = max(costs, key=lambda piece: piece.ms.value)
        told += f", and {most.stage} costs most with {number(most.ms.value)} ms"
    if verdict.bottleneck == "none" and verdict.starved is not None:
        share = f"{percent(max(0.0, verdict.starved.value))} of a step ({span(verdict.starved)})"
        return f"Nothing to gain here, because the input pipeline costs {share}: {told}."
    return f"What would mend it cannot be told from what was measured: {told}."
