"""What is worth measuring next, and when enough has been measured."""

from __future__ import annotations

from collections.abc import Sequence

from ..session import CONTROLS, Link, Session, cut_of, cut_rung, ordered
from .chain import why_unsplit
from .ladder import ENOUGH_WINDOWS, LadderView
from .thresholds import CONTENTION, GATE

#: A link that takes at least this part of its range's time in the workers is cut out at once; else ranges are halved.
_DOMINANT = 0.5
#: With steps shorter than this the control for contention is repeated in any case.
_QUICK_MS = 200.0


def next_round(session: Session) -> list[str]:
    """The rungs that deserve another window each; none when that would not change what a reader does.

    Every rung gets a few windows. Then a stage's cost is decided when its whole interval lies on one side of ``GATE``
    times the baseline step, or is no wider than half of that: a cost of 4.5 to 6.5 % is known well enough. Shares of
    the baseline step are compared rather than ratios of neighbouring rungs, because 20 % of a rung ten times as fast
    as the baseline changes nothing for the training. A range of transforms that costs more than the gate is cut
    further. The controls stand beside the ladder: they are repeated only where they may tell of contention.
    """
    ladder = LadderView(session)
    refused = {r.name for r in session.rungs.values() if not r.available}
    offered = ({r.name for r in session.rungs.values()} | {*ladder.rungs}) - refused - {*CONTROLS}
    wanted = {name for name in offered if ladder.windows(name) < ENOUGH_WINDOWS}
    rungs = ladder.rungs
    if "baseline" not in rungs or len(rungs) < 2:
        return ordered(wanted or offered)
    gate = GATE * ladder.ms("baseline").value
    for slow, fast in [*zip(rungs[1:], rungs, strict=False), ("baseline", rungs[0])]:
        if slow in refused or fast in refused:
            continue
        if min(ladder.windows(slow), ladder.windows(fast)) >= ENOUGH_WINDOWS and _undecided(ladder, slow, fast, gate):
            wanted |= {slow, fast}
        wanted |= _cuts(ladder, slow, fast, gate, refused)
    if "device+load" not in refused and ladder.has("device+load") and ladder.has("device"):
        lost = ladder.cost("device+load", "device")
        few = ladder.windows("device+load") < ENOUGH_WINDOWS
        suspected = lost.value > gate / 2 or ladder.ms("baseline").value < _QUICK_MS
        # What counts is whether most of the whole cost is lost that way.
        most = max(gate, CONTENTION * ladder.cost("baseline", "device").value)
        if (few and suspected) or (not few and _undecided(ladder, "device+load", "device", most)):
            wanted |= {"device+load", "device"}
    return ordered(wanted)


def _undecided(ladder: LadderView, slow: str, fast: str, bound: float) -> bool:
    cost = ladder.cost(slow, fast)
    return cost.low <= bound <= cost.high and cost.high - cost.low > bound / 2


def _cuts(ladder: LadderView, slow: str, fast: str, gate: float, refused: set[str]) -> set[str]:
    """New cuts inside the step from ``fast`` to ``slow``, with its two ends, where it holds costly transforms."""
    session = ladder.session
    behind = len(session.links) if fast == "sample" else cut_of(fast)
    if behind is None or (slow != "raw" and cut_of(slow) is None) or why_unsplit(session):
        return set()
    first = cut_of(slow) or 0
    if behind - first < 2 or ladder.cost(slow, fast).value <= gate:
        return set()
    new = {cut_rung(k) for k in _places(session.links, first, behind)} - refused
    return {slow, fast, *new} if new else set()


def _places(links: Sequence[Link], first: int, behind: int) -> list[int]:
    """After how many links to cut the range ``first .. behind``: around its costliest link, or through its middle."""
    weights = [link.cost.wall_ms for link in links[first:behind]]
    total = sum(weights)
    heaviest = max(range(len(weights)), key=lambda i: weights[i])
    if total > 0 and weights[heaviest] >= _DOMINANT * total:
        around = (first + heaviest, first + heaviest + 1)
        return [k for k in around if first < k < behind]
    if total <= 0:
        return [(first + behind) // 2]
    # Where the halves are most alike in cost.
    return [min(range(first + 1, behind), key=lambda k: abs(2 * sum(weights[: k - first]) - total))]
