"""Turn a session into a diagnosis with pure functions, without torch, numpy or a clock.

It may import ``session`` and ``errors``. Begin with :func:`diagnose_session`: ``numbers`` read the session, the
``waterfall`` divides a step, the ``verdict`` names the stage that costs most, ``recommend`` says what helps.
``stopping`` and ``trials`` decide what is measured next; ``compare``, ``sweep`` and ``audit`` build on diagnoses, and
``summary`` sums them up.
"""

from __future__ import annotations

from ..session import Session
from .amortised import amortised
from .checks import missing, warnings
from .diagnosis import Diagnosis
from .numbers.ladder import LadderView
from .ranks.stragglers import straggler_or_why_none
from .recommend import recommend
from .verdict import judge
from .waterfall import waterfall

__all__ = ["Diagnosis", "diagnose_session"]


def diagnose_session(session: Session, price: float | None = None) -> Diagnosis:
    """Return the waterfall, verdict, recommendations and warnings of a session. The result is deterministic.

    ``price`` is what an hour of training costs, in any currency.
    """
    ladder = LadderView(session)
    pieces = waterfall(ladder)
    verdict = judge(ladder, pieces)
    recommendations, nothing_to_gain = recommend(ladder, pieces, verdict)
    straggler, no_straggler = straggler_or_why_none(session)
    return Diagnosis(
        ladder=ladder,
        waterfall=pieces,
        verdict=verdict,
        warnings=[*session.warnings, *warnings(ladder, pieces)],
        partial=bool(missing(ladder)),
        recommendations=recommendations,
        nothing_to_gain=nothing_to_gain,
        price=price,
        straggler=straggler,
        no_straggler=no_straggler,
        amortised=amortised(ladder),
    )
