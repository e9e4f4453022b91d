"""Write verdicts as sentences that a newcomer understands, each with its numbers."""

from __future__ import annotations

from ..session import LADDER, Session
from ..session.words import listed
from .diagnosis import Stage
from .numbers.chain import heaviest
from .numbers.cores import threads
from .numbers.intervals import Interval
from .numbers.ladder import LadderView
from .thresholds import CO_BOTTLENECK, GATE, RESOLUTION
from .waterfall import ranked
from .words import counted, named, number, percent, percent_of, shown

#: Description of each stage's work.
WHAT_IT_IS = {
    **{kind.stage: kind.work for kind in LADDER},
    "sampler": "choosing the samples of a batch (the sampler runs in the training process)",
}
#: Stages that are divided by lines of code.
_OF_LINES = {"load": "loading", "collate": "collating"}
#: Description of the load stage if the transforms cannot be separated from it.
WHOLE_DATASET = "making the samples (the dataset's code: loading and transforms together)"


def loop_of(session: Session) -> str:
    """Return what the loop does, in a word."""
    return "evaluation" if session.evaluates else "training"


def fed(ladder: LadderView) -> str:
    """Return how the step without input cost is known, in words."""
    return "without the wait" if ladder.serial else "with cached batches"


def what(piece: Stage) -> str:
    if piece.stage == "load" and "transform" in piece.covers:
        return WHOLE_DATASET
    return WHAT_IT_IS[piece.stage]


def whose(session: Session) -> str:
    """Return whom data costs time."""
    return f"the job of {counted(len(session.ranks), 'rank')}" if len(session.ranks) > 1 else f"your {loop_of(session)}"


def starved(
    ladder: LadderView,
    share: Interval,
    top: Stage,
    others: list[str],
    following: str,
    after: float,
    best: float,
) -> str:
    """Return the sentence for a starving loop.

    ``after`` is steps per second without the costliest stage; ``best`` is the same without any input cost, 0 if
    unknown.
    """
    base = ladder.ms("baseline")
    text = (
        f"Data costs {whose(ladder.session)} {percent_of('each step', share)}: "
        f"{what(top)} costs {number(top.ms.value)} of {number(base.value)} ms."
    )
    if others:
        text += f" A comparable part goes into {listed([*map(shown, others)])}."
    if not best:
        return text
    if after <= (1 + RESOLUTION) * 1000.0 / base.value:
        text += " Removing it alone would not make the loop faster"
        text += f": {shown(following)} would still limit it" if following != "compute" else ""
        return text + f"; if data were free, {number(best)} steps/s."
    text += f" Without it the loop would run at about {number(after)} steps/s"
    if following != "compute":
        return text + f", limited next by {shown(following)}; if data were free, {number(best)}."
    text += f" instead of {number(1000.0 / base.value)}"
    if after < (1 - GATE) * best:  # several small costs remain
        return text + f"; if data were free, {number(best)}."
    return text + ", limited by the model itself."


def only_observed(ladder: LadderView) -> str:
    """Return the evidence behind a verdict from the loop's own waiting, and what would make it stronger."""
    session = ladder.session
    more = "Give a longer --budget" if session.ended == "budget" else "Let it train for more steps"
    return (
        f" This was observed in {session.steps_seen} steps; {unfed(session)}. "
        f"{more}, and pipediag measures how fast it would be."
    )


def unfed(session: Session) -> str:
    """Return why the loop was not fed from a cache, as a clause."""
    what = "the time was over" if session.ended == "budget" else "the loop ended"
    return f"{what} before it could be fed from a cache"


def within(session: Session, top: Stage, pieces: list[Stage]) -> str:
    """Return which part of the costliest stage dominates, by the workers' time."""
    parts = [p for p in pieces if p.stage == top.stage and p.links and p.culprit is not None and p.ms.value > 0]
    if (top.stage == "transform" and len(parts) > 1) or (top.stage in _OF_LINES and parts):
        parts = ranked(parts)
        told = [
            f"{named(p.culprit)} costs {number(p.ms.value)} ms"
            for p in parts[:3]
            if p.culprit is not None and p.ms.value >= CO_BOTTLENECK * parts[0].ms.value
        ]
        return f" Of {_OF_LINES.get(top.stage, 'the transforms')}, {'; '.join(told)}."
    most = heaviest(session.inside)
    if top.stage == "load" and "transform" in top.covers and most is not None and most[1] >= CO_BOTTLENECK:
        link, share = most
        return f" {percent(share)} of the time a worker spends on a sample goes into {named(link)}."
    return ""


def not_starved(ladder: LadderView, share: Interval) -> str:
    base = ladder.ms("baseline")
    if not ladder.intervened:
        share_text = percent_of(f"a {number(base.value)} ms step", share)
        return f"Not starved: the loop waits for data {share_text}.{only_observed(ladder)}"
    best = ladder.best
    return (
        f"Not starved: a step takes {number(base.value)} ms with the loader and {number(best.value)} ms "
        f"{fed(ladder)}, so data costs {percent_of('', share)}. To be faster, work on the model's own step."
    )


def undecided(ladder: LadderView, share: Interval, top: Stage | None) -> str:
    most = f" Most of it would be {shown(top.stage)}." if top is not None else ""
    found = f"It is not yet certain whether the loop starves: data costs {percent_of('each step', share)}.{most}"
    if ladder.waits_beside > GATE:
        return f"{found} The loop waits for another loader, too: --loader N analyses the N-th that it iterates."
    return f"{found} A longer --budget narrows the interval."


def contention(ladder: LadderView, lost: Interval) -> str:
    base = ladder.ms("baseline")
    return (
        f"The workers are not late, but they compete with the {loop_of(ladder.session)} process for the CPU: while "
        f"they run, a step takes {number(lost.value)} ms longer (of {number(base.value)} ms), waiting not included. "
        f"Fewer workers or fewer threads, not more, may help, and so may less work for the workers."
        f"{_threads(ladder.session)}"
    )


def _threads(session: Session) -> str:
    """Return the number of threads that want to run, with advice, if there are more than cores; else empty."""
    running = threads(session)
    if not running.exceed:
        return ""
    if running.each > 1:
        return f" {running}: {running.limit} in a worker_init_fn limits each worker to one."
    if running.own > 1:
        return f" {running}: OMP_NUM_THREADS or torch.set_num_threads({running.own_share}) limits the training process."
    return f" {running}."


def too_little(ladder: LadderView) -> str:
    have = ", ".join(ladder.rungs)
    seen = f"only {have} was measured" if have else "no step of the training loop was seen"
    return f"Too little is known to say whether the loop starves: {seen}."


def waiting(ladder: LadderView) -> str:
    """Return how long the loop waits in ``next()``; empty if that is unknown."""
    share = ladder.waited("baseline") if ladder.has("baseline") else None
    return f"the loop waits {percent(share.value)} of a step in next()" if share is not None else ""
