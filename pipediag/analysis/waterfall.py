"""Where a baseline step's milliseconds go: compute, then what each stage adds, then what is left over."""

from __future__ import annotations

import itertools

from ..session import Link, Place, Session, cut_of
from .chain import dominant, heaviest, joined
from .diagnosis import Stage
from .intervals import Interval, total
from .ladder import LadderView
from .thresholds import CO_BOTTLENECK, RESOLUTION


def waterfall(ladder: LadderView) -> list[Stage]:
    """Pieces of the baseline step in ladder order. Their ``ms`` sum to the baseline's, by way of ``residual``.

    Empty when the baseline was not measured. The residual exists because every piece is a median of its own; a
    residual that is large beside the pieces says that the rungs drifted while they were measured.
    """
    if not ladder.has("baseline"):
        return []
    rungs = ladder.rungs
    base = ladder.ms("baseline")
    first = ladder.ms(rungs[0])
    pieces = [Stage("compute", first, first.value / base.value, None, ladder.covered(rungs[0]), rungs[0])]
    pieces += [piece(ladder, slow, fast) for slow, fast in zip(rungs[1:], rungs, strict=False)]
    left = base.value - sum(piece.ms.value for piece in pieces)
    pieces.append(Stage("residual", Interval(left, left, left), left / base.value))
    return pieces


def piece(ladder: LadderView, slow: str, fast: str) -> Stage:
    """What ``slow`` adds to the rung ``fast`` next below it."""
    cost = _cost(ladder, slow, fast)
    stage, links = ladder.stage(slow), ladder.links(slow)
    place = culprit(ladder.session, stage)
    if stage == "transform":
        whole = len(links) > 1 and len(links) == len(ladder.session.links)
        place = dominant(links) or (place if whole else joined(links)) or place
    most = heaviest(ladder.session.inside)
    if stage == "load" and "transform" in ladder.covered(slow) and most is not None and most[1] >= CO_BOTTLENECK:
        place = Place(most[0].name, most[0].where)  # by worker time, since the ladder cannot tell them apart
    return Stage(
        stage,
        cost,
        cost.value / ladder.ms("baseline").value,
        place,
        ladder.covered(slow),
        slow,
        [link.name for link in links] if stage == "transform" else [],
    )


def by_stage(ladder: LadderView, pieces: list[Stage]) -> list[Stage]:
    """The pieces with neighbours of the same stage joined: the transforms' links are one stage.

    The joined cost is measured from the rung above all of them to the rung below, or is the sum of the parts where that
    is known better: once the chain is cut, only neighbouring rungs are measured further. Its culprit is the costliest
    part.
    """
    stages = []
    for stage, group in itertools.groupby(pieces, key=lambda part: part.stage):
        parts = list(group)
        fast = ladder.below(parts[0].rung) if parts[0].rung else None
        if len(parts) == 1 or fast is None:
            stages += parts
            continue
        direct, summed = _cost(ladder, parts[-1].rung, fast), total([part.ms for part in parts])
        cost = summed if summed.high - summed.low < direct.high - direct.low else direct
        costliest = ranked(ladder.session, parts)[0]
        links = [name for part in reversed(parts) for name in part.links]
        share = cost.value / ladder.ms("baseline").value
        stages.append(Stage(stage, cost, share, costliest.culprit, parts[-1].covers, parts[-1].rung, links))
    return stages


def _cost(ladder: LadderView, slow: str, fast: str) -> Interval:
    """The measured cost, no more certain than the instrument allows."""
    return ladder.cost(slow, fast).widened(RESOLUTION * ladder.ms("baseline").value)


def ranked(session: Session, parts: list[Stage]) -> list[Stage]:
    """Parts of the transform stage, costliest first.

    Which of them certainly cost something the ladder says. How much of the stage each would save is better told by
    the workers' own time: the part nearest to the device is added while the workers still have time to spare, and
    what it takes of that seems to cost nothing.
    """
    certain = [part for part in parts if part.ms.low > 0] or parts
    known = session.inside is not None and session.inside.samples > 0
    return sorted(certain, key=lambda p: worker_ms(session, p) if known else p.ms.value, reverse=True)


def worker_ms(session: Session, part: Stage) -> float:
    """Milliseconds a worker spends on each sample for the links of a part."""
    return sum(link.cost.wall_ms for link in _links_of(session, part))


def _links_of(session: Session, part: Stage) -> list[Link]:
    first = cut_of(part.rung) or 0
    return session.links[first : first + len(part.links)]


def culprit(session: Session, stage: str) -> Place | None:
    """The user's code behind a stage, where there is one."""
    loader = session.loader
    if loader is None:
        return None
    if stage == "transform":
        return loader.transform
    if stage in ("load", "storage"):
        return loader.dataset_code
    if stage == "collate":
        return loader.collate
    if stage in ("startup", "ipc", "transfer", "contention"):
        return Place("DataLoader", loader.where)
    return None
