"""What a reader should know before trusting the numbers, found in the numbers themselves."""

from __future__ import annotations

import math

from ..session import Session, Warning_
from .diagnosis import Stage
from .ladder import ENOUGH_WINDOWS, LadderView
from .sentences import number
from .thresholds import GATE

#: Cores in use from which on the machine counts as full.
FULL = 0.9


def partial(ladder: LadderView) -> bool:
    """Whether a rung that could be measured lacks windows."""
    return bool(missing(ladder))


def missing(ladder: LadderView) -> list[str]:
    available = [r.name for r in ladder.session.rungs.values() if r.available]
    return [name for name in available if ladder.windows(name) < ENOUGH_WINDOWS]


def warnings(ladder: LadderView, pieces: list[Stage]) -> list[Warning_]:
    found = [_partial(ladder), *_not_monotone(ladder, pieces), _full_cpu(ladder), _wrote(ladder.session)]
    return [w for w in found if w is not None]


def _partial(ladder: LadderView) -> Warning_ | None:
    lacking = missing(ladder)
    if not lacking:
        return None
    return Warning_(
        "partial",
        f"PARTIAL: fewer than {ENOUGH_WINDOWS} windows for {', '.join(lacking)}",
        "give it more time: --budget SECONDS",
    )


def _not_monotone(ladder: LadderView, pieces: list[Stage]) -> list[Warning_]:
    """A rung that is certainly faster than the one below it: the ladder's order is broken, and said so."""
    if not ladder.has("baseline"):
        return []
    gate = GATE * ladder.ms("baseline").value
    return [
        Warning_(
            "not-monotone",
            f"adding {p.stage} made the step {number(-p.ms.value)} ms faster, which a cost cannot do",
            "something else changed between the two rungs (CPU load, caches, batch contents); "
            "read the neighbouring stages together",
        )
        for p in pieces
        if p.stage != "residual" and not math.isinf(p.ms.high) and p.ms.high < -gate
    ]


def _full_cpu(ladder: LadderView) -> Warning_ | None:
    """The articles' caveat: on a full machine, the stage that tips it over may be innocent."""
    cores = ladder.session.environment.get("cores")
    if not cores or not ladder.has("baseline"):
        return None
    busy = ladder.evidence("baseline").get("cores_busy", 0.0)
    if busy < FULL * cores:
        return None
    return Warning_(
        "full-cpu",
        f"{busy:.1f} of {cores:g} usable cores are in use under the baseline",
        "the stage named may only be what tipped the machine over: freeing CPU time anywhere helps as well",
    )


def _wrote(session: Session) -> Warning_ | None:
    if not session.script.wrote:
        return None
    shown = ", ".join(session.script.wrote[:4])
    more = len(session.script.wrote) - 4
    return Warning_(
        "wrote-files",
        f"the analysed script wrote {shown}" + (f" and {more} more" if more > 0 else ""),
        "it ran for real, and more than once if passes > 1; --workdir DIR runs it in a scratch directory",
    )
