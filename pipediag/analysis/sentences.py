"""Verdicts in words a newcomer understands, each with its numbers."""

from __future__ import annotations

import math

from ..session import Session
from .chain import heaviest
from .diagnosis import Stage
from .intervals import Interval
from .ladder import LadderView
from .thresholds import CO_BOTTLENECK
from .waterfall import ranked, worker_ms

#: What the training loop pays for, stage by stage.
WHAT_IT_IS = {
    "transfer": "copying batches from host memory to the device",
    "ipc": "handing batches from the worker processes to the training process",
    "collate": "collating samples into batches",
    "transform": "running the transforms on every sample",
    "load": "loading the samples (reading, decoding, generating)",
    "storage": "reading data that is not in the page cache",
    "startup": "starting the loader's workers for every epoch",
    "compute": "the model itself",
}
#: The load stage when the transforms could not be told apart from it.
WHOLE_DATASET = "making the samples (the dataset's code: loading and transforms together)"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    """Three significant digits, never in powers of ten; less than a thousandth of the unit is nothing."""
    if abs(value) < 0.001:
        return "0"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def span(interval: Interval) -> str:
    """The interval of a share, for people."""
    if math.isinf(interval.low) or math.isinf(interval.high):
        return "one window only"
    return f"{max(0.0, 100 * interval.low):.0f} to {100 * interval.high:.0f} %"


def times(gain: Interval) -> str:
    """A speedup with its interval."""
    high = "more" if math.isinf(gain.high) else number(gain.high)
    return f"{number(gain.value)}x ({number(gain.low)} to {high})"


def what(piece: Stage) -> str:
    if piece.stage == "load" and "transform" in piece.covers:
        return WHOLE_DATASET
    return WHAT_IT_IS[piece.stage]


def device_name(session: Session) -> str:
    kind = session.device.get("type", "device")
    return "The training process" if kind == "cpu" else f"The {kind.upper()} device"


def starved(
    ladder: LadderView,
    share: Interval,
    top: Stage,
    others: list[str],
    following: str,
    ceiling: float,
) -> str:
    base = ladder.ms("baseline")
    text = (
        f"{device_name(ladder.session)} waits for data {percent(share.value)} of each step ({span(share)}): "
        f"{what(top)} costs {number(top.ms.value)} of {number(base.value)} ms."
    )
    if others:
        text += f" {', '.join(others).capitalize()} cost{'s' if len(others) == 1 else ''} a comparable part."
    best = 1000.0 / ladder.ms(ladder.rungs[0]).value
    text += f" Without it the loop would run at about {number(ceiling)} steps/s"
    if following != "compute":
        return text + f", limited next by {following}; with no input cost at all, {number(best)}."
    return text + f" instead of {number(1000.0 / base.value)}, limited by the model itself."


def within(session: Session, top: Stage, pieces: list[Stage]) -> str:
    """Which part of the costliest stage it is: by the ladder where it could be cut further, else by worker time."""
    parts = [p for p in pieces if p.stage == top.stage and p.links and p.ms.low > 0]
    if top.stage == "transform" and len(parts) > 1:
        return f" {_of_the_transforms(session, ranked(session, parts))}"
    most = heaviest(session.inside)
    if top.stage == "load" and "transform" in top.covers and most is not None and most[1] >= CO_BOTTLENECK:
        link, share = most
        return f" {percent(share)} of the time a worker spends on a sample goes into {_named(link.name, link.where)}."
    return ""


def _of_the_transforms(session: Session, parts: list[Stage]) -> str:
    """The costliest parts of the chain, each with its cost to training and the part of the workers' time it takes."""
    whole = session.inside.whole.wall_ms if session.inside else 0.0
    largest = worker_ms(session, parts[0]) or parts[0].ms.value
    told = []
    for part in parts[:3]:
        own = worker_ms(session, part)
        if (own or part.ms.value) < CO_BOTTLENECK * largest or part.culprit is None:
            continue
        share = f" and takes {percent(own / whole)} of a worker's time" if whole > 0 and own > 0 else ""
        told.append(f"{_named(part.culprit.name, part.culprit.where)} costs {number(part.ms.value)} ms{share}")
    return f"Of the transforms, {'; '.join(told)}." if told else ""


def _named(name: str, where: str) -> str:
    return f"{name} ({where})" if where else name


def not_starved(ladder: LadderView, share: Interval) -> str:
    base, best = ladder.ms("baseline"), ladder.ms(ladder.rungs[0])
    return (
        f"Not starved: a step takes {number(base.value)} ms with the loader and {number(best.value)} ms with cached "
        f"batches; the input pipeline costs {max(0.0, 100 * share.value):.0f} % ({span(share)}). "
        "To train faster, work on the model's own step."
    )


def undecided(ladder: LadderView, share: Interval, top: Stage, lost: Interval | None = None) -> str:
    """``lost`` is given where the workers may be in the way rather than late."""
    base = ladder.ms("baseline")
    if lost is not None:
        return (
            f"The input pipeline costs {percent(share.value)} of each step ({span(share)}), but it is open whether "
            f"the loop waits for it (most for {top.stage}) or the workers slow the training process: with batches on "
            f"the device already, a step took some {number(lost.value)} ms longer while they ran. "
            "A longer --budget narrows the intervals."
        )
    if share.low <= 0 or top.ms.low > 0:
        return (
            f"Cannot tell yet: the input pipeline costs {percent(share.value)} of the step ({span(share)}), "
            "too uncertain to call. A longer --budget narrows the interval."
        )
    return (
        f"The loop waits for data {percent(share.value)} of each step ({span(share)}), but no single stage's cost is "
        f"certain; the largest is {top.stage} with {number(top.ms.value)} of {number(base.value)} ms. "
        "A longer --budget narrows the intervals."
    )


def contention(ladder: LadderView, lost: Interval) -> str:
    base = ladder.ms("baseline")
    return (
        f"The workers are not late, they are in the way: with batches already on the device, a step still takes "
        f"{number(lost.value)} ms longer while they run (of {number(base.value)} ms). They compete with the training "
        f"process for the CPU: fewer workers or fewer threads, not more, should help.{_threads(ladder.session)}"
    )


def _threads(session: Session) -> str:
    """How many threads would like to run, where that is more than there are cores."""
    cores = session.environment.get("cores")
    workers = session.loader.num_workers if session.loader else 0
    inside = session.inside.threads if session.inside else {}
    own = int(session.environment.get("threads", {}).get("torch", 1))
    library, most = max(inside.items(), key=lambda item: item[1], default=("", 1))
    if not cores or workers * most + own <= cores:
        return ""
    text = f" {workers} workers of {most} thread{'' if most == 1 else 's'} and {own} of the training process share "
    text += f"{cores:g} cores"
    limits = {"opencv": "cv2.setNumThreads(1)", "torch": "torch.set_num_threads(1)"}
    if most > 1:
        how = limits.get(library, f"limiting {library}'s threads")
        return f"{text}: {how} in a worker_init_fn leaves one to each worker."
    if own > 1:
        return f"{text}: OMP_NUM_THREADS or torch.set_num_threads({max(1, int(cores) - workers)}) limits the latter."
    return text + "."


def startup(session: Session, amortised: float, base: Interval) -> str:
    assert session.loader is not None and session.loader.length
    text = (
        f"Every epoch begins with a wait: starting the loader costs {number(amortised)} ms a step when spread over the "
        f"epoch's {session.loader.length} batches, beside a step of {number(base.value)} ms. "
    )
    if session.loader.persistent_workers:
        return text + "The workers are kept already; longer epochs, or a cheaper first batch, would help."
    paid = [s for s in session.startups if not s.renewed and s.ready]
    if paid:
        one = sorted(paid, key=lambda s: s.seconds)[len(paid) // 2]
        text += (
            f"Of {one.seconds:.2g} s, launching the workers takes {one.launch:.2g} s, their imports and init function "
            f"{max(0.0, one.ready - one.launch):.2g} s, the first batch {max(0.0, one.seconds - one.ready):.2g} s. "
        )
    return text + "persistent_workers=True pays it once."


def too_little(ladder: LadderView) -> str:
    have = ", ".join(ladder.rungs) or "no rung"
    return f"Too little was measured to compare anything (windows exist for: {have})."
