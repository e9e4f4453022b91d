"""Recommend changes that make the training loop faster, with the gain that this run's numbers predict.

Each rule reads a :class:`~.view.View` of the run and returns a recommendation, or None if it lacks the evidence. The
model in :mod:`.whatif` makes the predictions. Nothing is recommended whose gain may be none, nor what
a trial has refuted. If a loop loses :data:`LOSS` of its time to data, there is something to do about the costliest
stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...session import Session
from ..amortised import STARTUP, amortised, with_amortised
from ..diagnosis import Recommendation, Stage, Verdict
from ..numbers.ladder import LadderView
from ..numbers.loop_and_workers import OF_THE_WORKERS
from ..thresholds import RESOLUTION, WORTH
from ..waterfall import input_stages
from ..whatif import WhatIf, what_if
from ..words import number, percent_of, shown, unfed
from . import fallback, lines, loading, model, ranks, transfer, transforms, tried, workers
from .view import View

#: Share of a step from which on what the verdict names gets at least one piece of advice that is shown.
LOSS = 0.1

RULES: tuple[Callable[[View], Recommendation | None], ...] = (
    ranks.late_rank,
    transforms.offload,
    transforms.reorder,
    transforms.precompute,
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
    loading.once,
    tried.settings,
    workers.more_workers,
    workers.prefetch,
    workers.one_iterator,
    workers.cheaper_sampler,
    workers.persistent_workers,
    workers.starting_others,
    workers.threads,
    workers.fewer_workers,
    loading.cache,
    workers.more_cores,
    model.frozen_prefix,
    model.compute,
)


def recommend(ladder: LadderView, pieces: list[Stage], verdict: Verdict) -> tuple[list[Recommendation], str]:
    """Return the worthwhile changes, largest gain first; and if none concerns the input pipeline, why.

    A recommendation is left out if its gain may be none, or is certainly below :data:`WORTH`. Those with an unknown
    gain come last.
    """
    numbers, costs, session = what_if(ladder), input_stages(ladder, pieces), ladder.session
    between, top = amortised(ladder), None
    # The stage that the verdict names, if data costs that much in and between the steps.
    if verdict.starved is not None and (
        with_amortised(verdict.starved, ladder.ms("baseline").value, between).value >= LOSS
    ):
        named = [verdict.bottleneck, *verdict.co_bottlenecks]
        tops = between if verdict.bottleneck == STARTUP else [c for stage in named for c in costs if c.stage == stage]
        top = next(iter(tops), None)
    found, told = [], []
    for one in considered(ladder, pieces, verdict):
        gain = one.gain
        if gain is None or (gain.low > 1 and (gain.value if one.at_most else gain.high) >= WORTH):
            found.append(one)
            told += [one] if gain is None or gain.value >= WORTH else []
    stages = {verdict.bottleneck}
    # Where neither fewer workers nor fewer threads remain to be tried, contention falls with the workers' work only.
    if verdict.bottleneck == "contention" and not fallback.ways_to_leave_a_core(session):
        stages.update(OF_THE_WORKERS)
    if top is not None and not any(one.stage in stages for one in told):
        found.append(fallback.for_stage(ladder, numbers, top))
    found.sort(key=_rank)
    concerns_input = any(one.stage != "compute" for one in found)
    return found, "" if concerns_input else _nothing(session, verdict, numbers, costs)


def considered(ladder: LadderView, pieces: list[Stage], verdict: Verdict) -> list[Recommendation]:
    """Return what each rule predicts, whatever the gain; nothing if the loop was not fed from a cache."""
    numbers = what_if(ladder)
    if numbers is None:
        return []
    between_ms = sum(cost.ms.value for cost in amortised(ladder)) if verdict.finds_cost else 0.0
    view = View(ladder, input_stages(ladder, pieces), verdict, numbers, between_ms)
    made = [one for rule in RULES if (one := rule(view)) is not None]
    return [*made, *transforms.cheaper_ways(view), *lines.cheaper_ways(view)]


def _rank(one: Recommendation) -> float:
    """Return the sort key: the gain rounded to 0.01, so that gains at the ceiling keep the order of the rules.

    A bound counts as if half of the time that it takes off were saved.
    """
    if one.gain is None:
        return math.inf
    return -round(2 / (1 + 1 / one.gain.value) if one.at_most else one.gain.value, 2)


def _nothing(session: Session, verdict: Verdict, numbers: WhatIf | None, costs: list[Stage]) -> str:
    """Return why nothing can be gained from the input pipeline, or why no gain is known."""
    if verdict.bottleneck == "inconclusive" or verdict.starved is None:
        return f"Nothing can be recommended yet. {verdict.sentence}"
    told = ""
    if numbers is not None:  # the loop was fed from a cache
        told = f": {number(numbers.base)} ms a step with the loader, {number(numbers.compute)} ms with cached batches"
        if costs and costs[0].ms.value > RESOLUTION * numbers.base:
            told += f", and the largest part is {shown(costs[0].stage)} with {number(costs[0].ms.value)} ms"
    if verdict.bottleneck == "none":
        return f"Nothing to gain here, because data costs {percent_of('a step', verdict.starved)}{told}."
    return (
        f"The measurements do not show what would help{told}."
        if told
        else f"No gain can be predicted: {unfed(session)}."
    )
