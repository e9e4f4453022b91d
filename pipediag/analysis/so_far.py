"""Say in a few words what is known during the measurement."""

from __future__ import annotations

from ..session import Session
from .numbers.chain import parts_of_sample
from .numbers.ladder import LadderView
from .sentences import waiting
from .verdict import starved_share
from .words import counted, number, percent, shown


def so_far(session: Session) -> list[str]:
    """Return the interim result in parts, the most important first; empty before the first steps.

    Once the loop was fed from a cache, the first part is what data costs, the figure of the later headline. Until then
    it is the time in ``next()``, which misleads at first: the loop uses up batches that were queued in its slow first
    step. So the workers' pace stands beside it.
    """
    ladder = LadderView(session)
    waits = waiting(ladder)
    if not waits:
        return []
    step, starved = number(ladder.ms("baseline").value), starved_share(ladder)
    parts = [waits]
    if ladder.intervened and starved is not None:
        parts = [f"data costs {percent(max(0.0, starved.value))} of a step of {step} ms"]
    elif session.workers and (made := ladder.evidence("baseline").get("worker_ms", 0.0)):
        who = counted(session.workers, "worker")
        parts.append(f"a step takes {step} ms, a batch from {who} {number(made / session.workers)} ms")
    inside = parts_of_sample(session.inside, lambda cost: cost.wall_ms)
    return [*parts, *(f"{shown(name)} is {percent(share)} of a sample" for name, share in inside[:1])]
