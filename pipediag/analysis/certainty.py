"""Say why an answer is not certain. Only what would be wrong in an experiment repeated is called certain."""

from __future__ import annotations

from collections.abc import Iterator

from ..session import RUNGS, STAGE_OF_RUNG, Session
from ..session.events import KEPT_BATCHES
from .numbers.ladder import LadderView
from .numbers.load import others, stolen
from .thresholds import GATE
from .words import counted, number, percent

#: Windows that each side of a comparison needs, and times at which they were measured: one says nothing about others.
ENOUGH = 2
#: Pairs of windows agree if the shares that they give lie within this range, and if other processes lengthened the step
#: of one of them by less than this share.
_APART, DISTURBED = 0.25, 0.1
#: Verdicts that rest on the kernel's counters.
_COUNTED = ("contention", "ipc")


def why_uncertain(ladder: LadderView, bottleneck: str) -> str:
    """Return why it is not certain whether the loop starves and what for, as a clause; empty if it is certain."""
    return next(filter(None, _reasons(ladder, bottleneck)), "")


def _reasons(ladder: LadderView, bottleneck: str) -> Iterator[str]:
    session, ceiling = ladder.session, ladder.ceiling if ladder.intervened else ""
    if not ceiling:
        yield f"seen in {counted(session.steps_seen, 'step')} only"
        return
    if any(one.code == KEPT_BATCHES for one in session.warnings):
        yield "the script goes on without its loader after an epoch"
    paired = ladder.paired("baseline", ceiling)
    if ladder.serial:
        if ladder.windows("baseline") < ENOUGH:
            yield "measured once only"
    elif len(paired) < ENOUGH:
        yield "measured once only"
    elif min(ladder.times("baseline"), ladder.times(ceiling)) < ENOUGH:
        yield "measured at one time only"
    windows = [window for pair in paired for window in pair]
    if stolen(windows, session.cores):
        yield "this virtual machine's host took CPU time away"
    if not ladder.serial:
        shares = [1 - fast / slow for slow, fast in ladder.steps_of_pairs("baseline", ceiling)]
        if shares and max(shares) - min(shares) > _APART:
            yield f"its measurements differ: {percent(max(0.0, min(shares)))} and {percent(max(shares))}"
        if ladder.disturbed("baseline", ceiling) > DISTURBED:
            yield _busy(session, ladder)
    if (share := ladder.waits_beside) > GATE:
        yield f"the loop waits {percent(share)} of a step for another loader, too"
    if bottleneck in _COUNTED and session.workers and any(window.account is None for window in windows):
        yield "the kernel does not count how long threads wait for a core"


def _busy(session: Session, ladder: LadderView) -> str:
    used = others(session, ladder.windows_used("baseline"))
    whose = f"other processes used {number(used)} of {session.cores:g} cores" if used else "the machine was busy"
    return f"{whose}, and not evenly"


def rungs_beside(stage: str) -> tuple[str, ...]:
    """Return the rungs that prove what a stage costs: with and without it.

    The workers' stages are part of the baseline, so the rung without the stage is enough.
    """
    adding = next((rung for rung, of in STAGE_OF_RUNG.items() if of == stage), "")
    if not adding:  # contention, the sampler: the same work with and without
        return ("worker", "host", "device")
    without = RUNGS[max(0, RUNGS.index(adding) - 1)]
    return (without, adding) if adding in ("host", "worker") else (without,)
