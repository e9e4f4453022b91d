"""Spread what the loop pays only now and then over its steps: starting its loader for an epoch, and other loaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..session import Place, Session
from . import startup
from .diagnosis import Stage
from .numbers.intervals import Interval, total
from .numbers.ladder import LadderView
from .other_loaders import other_loaders
from .thresholds import GATE, RUN_TO_RUN
from .waterfall import culprit, ranked

#: The stages, which are no part of the baseline step.
STARTUP, OTHER_LOADERS = "startup", "other loaders"


def amortised(ladder: LadderView) -> list[Stage]:
    """Return the worthwhile costs between the steps, costliest first, in milliseconds a step.

    ``share`` is that of a step with all of them. A cost of which only a bound is known is left out. The intervals hold
    for another run: see :data:`.thresholds.RUN_TO_RUN`.
    """
    if not ladder.has("baseline"):
        return []
    step, session = ladder.ms("baseline").value, ladder.session
    each, start = startup.startup_ms(ladder), startup.epoch_start(ladder)
    found = [_start(session, each, start)] if each is not None and start is not None else []
    found += [Stage(OTHER_LOADERS, one.per_step, 0.0, Place("DataLoader", one.where)) for one in other_loaders(ladder)]
    found = [replace(stage, ms=stage.ms.blurred(RUN_TO_RUN * stage.ms.value)) for stage in found]
    found = [stage for stage in found if stage.ms.low > 0 and stage.ms.beside(step).value >= GATE]
    whole = step + sum(stage.ms.value for stage in found)
    return ranked([replace(stage, share=stage.ms.value / whole) for stage in found])


def _start(session: Session, each: Interval, start: startup.EpochStart) -> Stage:
    """Return an epoch's start as a stage; if most of it is the sampler's, at the sampler."""
    place = culprit(session, "sampler") if start.by_sampler else None
    named = [f"the sampler {place.name}"] if place is not None else []
    return Stage(STARTUP, each, 0.0, place or culprit(session, STARTUP), links=named)


def described(ladder: LadderView, cost: Stage) -> str:
    """Return an amortised cost as a sentence, with what would help."""
    if cost.stage == STARTUP:
        return startup.sentence(ladder)
    where = cost.culprit.where if cost.culprit is not None else ""
    return next(one.sentence for one in other_loaders(ladder) if one.where == where)


def with_amortised(share: Interval, step: float, costs: Sequence[Stage]) -> Interval:
    """Return a share of a step of ``step`` milliseconds, as the share of a step with its amortised costs."""
    cost = share.value * step + sum(stage.ms.value for stage in costs)
    rest = step * (1 - share.value)
    whole = cost + rest
    of_the_step = share.shifted(-share.value).times(step / whole)  # the step was measured: only its division is open
    between = [
        Interval(*((cost + more) / (whole + more) - cost / whole for more in _ends(stage.ms))) for stage in costs
    ]
    return total([of_the_step, *between]).shifted(cost / whole)


def _ends(ms: Interval) -> tuple[float, float, float]:
    """Return how far an interval reaches from its value: 0, to its low end, to its high end."""
    return 0.0, ms.low - ms.value, ms.high - ms.value
