"""Decide what to measure next and when to stop: first whether the loop starves, then where the time goes."""

from __future__ import annotations

import itertools

from ..session import CONTROLS, FEWER_THREADS, STAGE_OF_RUNG, Session, cut_of, cut_rung, ordered
from .diagnosis import Stage
from .numbers.chain import why_unsplit
from .numbers.hot_lines import rungs_for
from .numbers.ladder import LadderView
from .numbers.loop_and_workers import OF_THE_WORKERS, sides
from .thresholds import GATE, RESOLUTION
from .trials import threads
from .verdict import DISTURBED, disagreements, judge, measured_share, rungs_beside, starved_share, starves
from .waterfall import by_stage, ranked, waterfall

#: A link with at least this share of its range's worker time is cut out at once; other ranges are halved.
_DOMINANT = 0.5
#: The starved share is known well enough if its interval is no wider than this.
_WIDE = 0.25
#: Least share of a worker's time per sample for a range of transforms to be cut further.
_LARGE = 0.25
#: Windows of the two rungs that decide whether the loop starves: the second shows whether the machine is stable.
_HEADLINE = 2
#: The rungs that decide whether the loop starves and on which side, and those that locate the cost within a side.
_WHETHER, _WHERE = frozenset({"device", "worker", "baseline"}), frozenset({"host", "sample", "raw"})
#: Number of windows after which a rung that contradicts the workers' time is accepted.
_ENOUGH = 3


def next_round(session: Session) -> list[str]:
    """Return the rungs that need another window each; empty if more windows would not change the reader's decision.

    First decide whether the loop starves: device-cached batches, idle workers' batches, and the unmodified loop. Then
    locate the cost: each other rung gets a window, and the baseline and the ``device`` rung get another, since a
    machine may need time to become stable. A stage of the training process is decided if its whole interval lies on one
    side of ``GATE`` times the baseline step, or is no wider than half of that: a cost of 4.5 to 6.5 % is known well
    enough. Rungs that contradict the workers' time are measured again. If the transforms cost more than the gate, their
    chain is cut. If torch's threads wait for cores, fewer of them are tried at once: the other rungs may be slow.
    """
    return ordered({*_next_of_ladder(session), *threads.next_rungs(session)})


def _next_of_ladder(session: Session) -> list[str]:
    ladder = LadderView(session)
    refused = {rung.name for rung in session.rungs.values() if not rung.available}
    offered = {*session.rungs, *ladder.rungs} - refused - {FEWER_THREADS}
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
        cost = ladder.cost(slower, faster)
        wide = cost.high - cost.low > max(gate / 2, RESOLUTION * gate / GATE)
        if cost.low <= gate <= cost.high and wide:
            wanted |= {slower, faster}
    lost = sides(ladder).lost
    if own and lost.low <= gate <= lost.high and lost.high - lost.low > gate and ladder.windows("baseline") < _ENOUGH:
        wanted |= {"baseline", own[-1]}
    pieces = waterfall(ladder)
    top = judge(ladder, pieces).bottleneck
    if top in STAGE_OF_RUNG.values() or top in ("contention", "sampler"):
        wanted |= {rung for rung in rungs_beside(top) if ladder.has(rung) and ladder.windows(rung) < _HEADLINE}
    if top in OF_THE_WORKERS:
        wanted |= {rung for rung, *_ in disagreements(ladder) if ladder.windows(rung) < _ENOUGH}
        if "warm" in rungs and ladder.windows("warm") < _HEADLINE and top in ("load", "storage"):
            wanted |= {"warm", "baseline"}
        wanted |= _lines(ladder, pieces, refused)
        costs = {piece.stage: piece.ms.value for piece in by_stage(ladder, pieces)}
        if costs.get("transform", 0.0) > gate:
            for fast, slow in itertools.pairwise(rungs):
                wanted |= _cuts(ladder, slow, fast, refused)
    return ordered(wanted - refused)


def _headline(ladder: LadderView) -> set[str]:
    """Return the rungs that decide whether the loop starves, unless that is known."""
    pair = {"baseline", ladder.ceiling}
    starved, measured = starved_share(ladder), measured_share(ladder)
    drifts = not ladder.steady and ladder.windows("baseline") <= _ENOUGH
    if starved is None or measured is None or starves(ladder, starved) is None or drifts:
        return pair
    if measured.high - measured.low > _WIDE:
        return pair
    if ladder.disturbed("baseline", ladder.ceiling) > DISTURBED and ladder.windows("baseline") <= _ENOUGH:
        return pair
    if min(map(ladder.windows, pair)) >= _HEADLINE > min(map(ladder.times, pair)):
        return pair  # another window alone would follow the last one back to back
    return {rung for rung in pair if ladder.windows(rung) < _HEADLINE}


def _lines(ladder: LadderView, pieces: list[Stage], refused: set[str]) -> set[str]:
    """Return the rung without the line of the user's that takes most of the workers' time, if they are known by lines.

    If the line cannot be left out, it is the rung without the function that the line is in. Where the dataset has
    transforms, the ladder separates loading from them, and only collating is left out.
    """
    session, loader = ladder.session, ladder.session.loader
    if loader is None or loader.iterable or loader.plain_iterable or "warm" not in session.rungs:
        return set()
    for piece in ranked([one for one in pieces if one.stage in OF_THE_WORKERS]):
        if piece.stage not in ("load", "collate") or (piece.stage == "load" and session.links) or not piece.culprit:
            return set()
        stage = sum(one.ms.value for one in pieces if one.stage == piece.stage)
        large = _LARGE * sides(ladder).waits.value / max(stage, 1e-9)
        for rung in rungs_for(session, piece.stage, piece.culprit.where, large):
            if rung not in refused:
                return {rung, "baseline"} if ladder.windows(rung) < _HEADLINE else set()
    return set()


def _cuts(ladder: LadderView, slow: str, fast: str, refused: set[str]) -> set[str]:
    """Return new cuts between two rungs, if the transforms between them take a large share of the workers' time."""
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
    weights = [link.cost.wall_ms for link in links]
    total, heaviest = sum(weights), max(range(len(weights)), key=lambda i: weights[i])
    if total <= 0:
        places = [(first + behind) // 2]
    elif weights[heaviest] >= _DOMINANT * total:  # around it
        places = [k for k in (first + heaviest, first + heaviest + 1) if first < k < behind]
    else:  # with the most equal costs on both sides
        places = [min(range(first + 1, behind), key=lambda k: abs(2 * sum(weights[: k - first]) - total))]
    return {cut_rung(k) for k in places} - refused - {*ladder.rungs}
