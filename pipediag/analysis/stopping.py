"""What is worth measuring next, and when enough has been measured: whether the loop starves, then where."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..session import CONTROLS, Link, Session, cut_of, cut_rung, ordered
from .chain import why_unsplit
from .ladder import LadderView, known
from .thresholds import GATE, RESOLUTION
from .verdict import disagreements, judge, starved_share, starves
from .waterfall import OF_THE_WORKERS, by_stage, sides, waterfall

#: A link that takes at least this part of its range's time in the workers is cut out at once; else ranges are halved.
_DOMINANT = 0.5
#: The share of a step that the loop waits is known well enough when its interval is no wider than this.
_WIDE = 0.25
#: The part of a worker's time for a sample that a range of transforms takes at least to be cut further.
_LARGE = 0.25
#: Windows of the two rungs that say whether the loop starves: the second shows whether the machine stays as it is.
_HEADLINE = 2
#: The rungs that say whether the loop starves and on which side, and those that say where on the workers' side.
_WHETHER, _WHERE = frozenset({"device", "worker", "baseline"}), frozenset({"host", "sample", "raw"})
#: Windows after which a rung that contradicts what a worker's time says is believed to.
_ENOUGH = 3


def next_round(session: Session) -> list[str]:
    """The rungs that deserve another window each; none when that would not change what a reader does.

    First whether the loop starves: fed from the device, by workers that have nothing to do, and as it is. Then where:
    the other rungs get a window each, and the loop as it is and at its best another one, since a machine may need a
    while until it runs as it will. A stage of the training process is decided when its whole interval lies on one side
    of ``GATE`` times the baseline step, or is no wider than half of that: a cost of 4.5 to 6.5 % is known well enough.
    Rungs that contradict what the workers' time says are measured again, and a range of transforms that costs more
    than the gate is cut.
    """
    ladder = LadderView(session)
    refused = {rung.name for rung in session.rungs.values() if not rung.available}
    offered = {name for name in {*session.rungs, *ladder.rungs} if known(name)} - refused
    new = {name for name in offered if not ladder.windows(name)}
    for tier in (_WHETHER, _WHERE):
        if new & tier:
            again = {name for name in ("baseline", "device") if tier is _WHERE and ladder.windows(name) < _HEADLINE}
            return ordered((new & tier) | (again & offered))
    rungs, wanted = ladder.rungs, new
    if "baseline" not in rungs or len(rungs) < 2:
        return ordered(wanted or offered - {*CONTROLS})
    wanted |= _headline(ladder)
    gate = GATE * ladder.ms("baseline").value
    own = [name for name in ("device", "host", "worker") if name in rungs]
    for faster, slower in itertools.pairwise(own):
        if _undecided(ladder, slower, faster, gate):
            wanted |= {slower, faster}
    lost = sides(ladder).lost
    if own and lost.low <= gate <= lost.high and lost.high - lost.low > gate and ladder.windows("baseline") < _ENOUGH:
        wanted |= {"baseline", own[-1]}
    pieces = waterfall(ladder)
    top = judge(ladder, pieces).bottleneck
    if top in OF_THE_WORKERS:
        wanted |= {rung for rung, *_ in disagreements(ladder) if ladder.windows(rung) < _ENOUGH}
        if "warm" in rungs and ladder.windows("warm") < _HEADLINE and top in ("load", "storage"):
            wanted |= {"warm", "baseline"}
        costs = {piece.stage: piece.ms.value for piece in by_stage(ladder, pieces)}
        if costs.get("transform", 0.0) > gate:
            for slow, fast in zip(rungs[1:], rungs, strict=False):
                wanted |= _cuts(ladder, slow, fast, refused)
    return ordered(wanted - refused)


def _headline(ladder: LadderView) -> set[str]:
    """The rungs that say whether the loop starves, unless that is known."""
    pair = {"baseline", ladder.ceiling}
    starved = starved_share(ladder)
    drifts = not ladder.steady and ladder.windows("baseline") <= _ENOUGH
    if starved is None or starves(ladder, starved) is None or starved.high - starved.low > _WIDE or drifts:
        return pair
    return {rung for rung in pair if ladder.windows(rung) < _HEADLINE}


def _undecided(ladder: LadderView, slow: str, fast: str, bound: float) -> bool:
    cost = ladder.cost(slow, fast)
    return cost.low <= bound <= cost.high and cost.high - cost.low > max(bound / 2, RESOLUTION * bound / GATE)


def _cuts(ladder: LadderView, slow: str, fast: str, refused: set[str]) -> set[str]:
    """New cuts between two rungs, if the transforms between them take a good part of the workers' time."""
    session = ladder.session
    behind = len(session.links) if fast == "sample" else cut_of(fast)
    if behind is None or (slow != "raw" and cut_of(slow) is None) or why_unsplit(session):
        return set()
    first = cut_of(slow) or 0
    if behind - first < 2 or session.inside is None:
        return set()
    links = session.links[first:behind]
    if sum(link.cost.wall_ms for link in links) < _LARGE * session.inside.whole.wall_ms:
        return set()
    return {cut_rung(k) for k in _places(session.links, first, behind)} - refused - {*ladder.rungs}


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
