"""The verdict: which stage's inclusion costs the time, how sure that is, and what would limit next."""

from __future__ import annotations

import statistics

from ..session import Session
from . import sentences
from .diagnosis import Stage, Verdict
from .intervals import Interval
from .ladder import LadderView
from .thresholds import CO_BOTTLENECK, CONTENTION, GATE, SEVERE
from .waterfall import by_stage, culprit


def judge(ladder: LadderView, pieces: list[Stage]) -> Verdict:
    """Decide from the measured ladder. Never guesses: what the intervals leave open is ``inconclusive``."""
    rungs = ladder.rungs
    if "baseline" not in rungs or len(rungs) < 2:
        return Verdict("inconclusive", sentences.too_little(ladder))
    session = ladder.session
    base = ladder.ms("baseline")
    starved = starved_share(ladder)
    startup = startup_ms(session)
    stages = sorted(
        (p for p in by_stage(ladder, pieces) if p.stage not in ("compute", "residual")),
        key=lambda p: p.ms.value,
        reverse=True,
    )
    top = stages[0]
    band = _band(starved)

    if startup is not None and startup > max(top.ms.value, 0.0) and startup / (base.value + startup) > GATE:
        return Verdict(
            "startup",
            sentences.startup(session, startup, base),
            culprit(session, "startup"),
            starved,
            band,
            [top.stage] if starved.low > GATE and top.ms.low > 0 else [],
            (top.stage if starved.low > GATE else "compute", 1000.0 / base.value),
        )
    if starved.high < GATE:
        return Verdict(
            "none", sentences.not_starved(ladder, starved), None, starved, band, [], ("compute", 1000.0 / base.value)
        )
    if starved.low <= GATE:
        return Verdict("inconclusive", sentences.undecided(ladder, starved, top), None, starved, band)

    lost = lost_to_workers(ladder)
    most = lost is not None and lost.value >= CONTENTION * ladder.cost("baseline", "device").value
    if lost is not None and most and lost.low > GATE * base.value:
        after = max(base.value - lost.value, ladder.ms("device").value)
        return Verdict(
            "contention",
            sentences.contention(ladder, lost),
            culprit(session, "contention"),
            starved,
            band,
            [top.stage],
            ("compute", 1000.0 / after),
        )
    if most or top.ms.low <= 0:
        return Verdict(
            "inconclusive", sentences.undecided(ladder, starved, top, lost if most else None), None, starved, band
        )
    others = [p.stage for p in stages[1:] if p.ms.low > 0 and _rivals(p, top, base)]
    after = max(base.value - top.ms.value, ladder.ms(rungs[0]).value)
    following = stages[1].stage if len(stages) > 1 and stages[1].ms.value > GATE * base.value else "compute"
    told = sentences.starved(ladder, starved, top, others, following, 1000.0 / after)
    return Verdict(
        top.stage,
        told + sentences.within(session, top, pieces),
        top.culprit,
        starved,
        band,
        others,
        (following, 1000.0 / after),
    )


def starved_share(ladder: LadderView) -> Interval:
    """Share of the baseline step that vanishes when the input pipeline is cached away: ``1 - device / baseline``.

    The interval is of the shares, round by round: of their ratio it would hang on what little is left of a step.
    """
    return ladder.share("baseline", ladder.rungs[0])


def startup_ms(session: Session) -> float | None:
    """Milliseconds per step that an epoch's beginning costs, spread over it; None where that is not known.

    With it goes ending the workers of the epoch before. With persistent workers only epochs after the first count:
    there the workers are started once.
    """
    loader = session.loader
    if loader is None or not loader.length:
        return None
    paid = [s.seconds for s in session.startups if s.renewed or not loader.persistent_workers]
    ended = [s.shutdown for s in session.startups if s.shutdown > 0]
    each = statistics.median(paid) + (statistics.median(ended) if ended else 0.0) if paid else None
    return None if each is None else 1000.0 * each / loader.length


def lost_to_workers(ladder: LadderView) -> Interval | None:
    """Milliseconds per step that the loop loses to the workers' mere presence; None where that was not measured.

    Taking batches off the workers' hands goes on meanwhile, in the training process: what the hand-off costs there is
    the hand-off's.
    """
    if not (ladder.has("device+load") and ladder.has("device")):
        return None
    lost = ladder.cost("device+load", "device")
    below = ladder.below("worker") if ladder.has("worker") else None
    if below is not None:
        lost = lost.shifted(-max(0.0, ladder.cost("worker", below).value))
    return lost


def _rivals(piece: Stage, top: Stage, base: Interval) -> bool:
    """Worth naming beside the largest: of its size, or not to be told apart from it."""
    large = piece.ms.value >= CO_BOTTLENECK * top.ms.value
    close = piece.ms.high >= top.ms.low
    return (large or close) and piece.ms.value > GATE * base.value


def _band(starved: Interval) -> str:
    if starved.value < GATE:
        return "none"
    return "mild" if starved.value < SEVERE else "severe"
