"""Divide a baseline step into pieces: the stages of both sides (:mod:`.loop_and_workers`).

The training process's own time is divided by its rungs. What it loses while workers run is contention; if a rung is
missing, it counts as that rung's stage, unless it is longer than moving the batch's bytes can take. The waiting time
belongs to the workers. It is divided in proportion to a worker's time for each of its stages, not by the marginal costs
of neighbouring rungs: those give everything to the first stage that the loop cannot hide. The rungs divide it only if
no worker times are known.

No piece is negative, and the pieces sum to the step. Each piece also says how fast the loop would be without it
(:func:`without`), which is not its size: a stage that another one hides costs nothing until the other is gone.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ..session import STAGE_OF_RUNG, Inside, Place, Session
from .diagnosis import Stage, Without
from .numbers.chain import dominant, grains, heaviest, joined
from .numbers.hot_lines import functions_left_out, of_stage, rung_of
from .numbers.intervals import Interval, exactly, largest, least, total
from .numbers.ladder import OWN_SIDE, LadderView
from .numbers.loop_and_workers import OF_THE_WORKERS, Sides, collating_apart, collating_left, divided, sides
from .numbers.paired_windows import WORKERS
from .thresholds import CO_BOTTLENECK, RESOLUTION
from .whatif import Change, WhatIf, what_if

#: Half-width of the interval of a stage's share of a worker's time. Shares differ little between samples, but cached
#: files, other cores and the first samples shift them against the whole run (2 to 4 points on recorded runs).
_SHARE_ARM = 0.05
#: Most that handing a batch over and copying it adds to a step beyond the wait for it, in all and for each megabyte:
#: memory that the host of a virtual machine provides on first use takes 2.4 ms per megabyte.
_MOVED_MS, _MOVED_MS_PER_MB = 10.0, 2.5
#: Least part of a line's share of the workers' time that must be missing while its calls are left out.
_LEFT_OUT = 0.5
#: Rounding error left by differences that cancel out.
_DUST = 1e-9


def waterfall(ladder: LadderView) -> list[Stage]:
    """Return the pieces of the baseline step from the device outwards. None is negative; they sum to the step.

    The list is empty if no step of the loop was seen.
    """
    if not ladder.has("baseline"):
        return []
    found, fastest = sides(ladder), ladder.beside(ladder.rungs[0])
    compute = fastest.shifted(found.compute - fastest.value).not_negative()
    pieces = [_stage(ladder, "compute", compute, ladder.rungs[0])]
    at, before = found.compute, "device" if ladder.has("device") else ""
    for rung in OWN_SIDE[1:]:
        if ladder.has(rung) and before:
            more, sampler = (found.handed + found.locked, found.sampler) if rung == "worker" else (0.0, 0.0)
            least = at + sampler
            here = min(found.ready - found.sampler + sampler, max(least, ladder.beside(rung).value + more))
            cost = ladder.cost(rung, before).shifted(more - sampler)
            arms = Interval(here - least, min(here - least, max(0.0, cost.low)), max(here - least, cost.high))
            pieces.append(_stage(ladder, ladder.stage(rung), arms, rung, ladder.covered(rung)))
            at = here
        before = rung if ladder.has(rung) else before
    if found.sampler:  # timed, not derived from rungs
        place = culprit(ladder.session, "sampler")
        named = [f"the sampler {place.name}"] if place is not None else []
        pieces.append(_stage(ladder, "sampler", exactly(found.sampler), links=named))
    pieces += _lost(ladder, found)
    pieces += _of_the_workers(ladder, found)
    left = found.step.value - sum(piece.ms.value for piece in pieces)
    apart = {piece.stage for piece in pieces[1:]}
    covers = [stage for stage in ladder.covered(ladder.rungs[0]) if ladder.intervened and stage not in apart]
    pieces[0] = _stage(ladder, "compute", pieces[0].ms.shifted(left).not_negative(), ladder.rungs[0], covers)
    numbers = what_if(ladder)
    together = _stored(pieces) or [piece.stage for piece in pieces].count("load") > 1
    for piece in pieces[1:]:
        piece.without = without(ladder, numbers, piece, together)
    return pieces


def _stored(pieces: list[Stage]) -> bool:
    """Return whether storage has a cost of its own next to loading."""
    return any(piece.stage == "storage" and piece.share > RESOLUTION for piece in pieces)


def _stage(
    ladder: LadderView,
    stage: str,
    ms: Interval,
    rung: str = "",
    covers: list[str] | None = None,
    place: Place | None = None,
    links: list[str] | None = None,
) -> Stage:
    share = ms.value / ladder.ms("baseline").value
    added_by = rung if ladder.has(rung) else ""
    return Stage(stage, ms, share, place or culprit(ladder.session, stage), covers or [stage], added_by, links or [])


def _lost(ladder: LadderView, found: Sides) -> list[Stage]:
    """Return the additional time of the training process while workers run, as the stages that may explain it.

    What a thread that hands batches over takes from it is part of the hand-off where that was measured.
    """
    hidden = [STAGE_OF_RUNG[rung] for rung in OWN_SIDE[1:] if ladder.lacks(rung)]
    locked = 0.0 if ladder.has("worker") else found.locked
    lost, size, dust = found.lost.not_negative(), ladder.session.batch_bytes, _DUST * found.step.value
    if hidden and not (size and lost.low > _MOVED_MS + _MOVED_MS_PER_MB * size / 1e6):
        handed = lost.shifted(locked)
        return [_stage(ladder, hidden[-1], handed, covers=hidden)] if handed.value > dust else []
    pieces = [_stage(ladder, "ipc", lost.shifted(locked - lost.value), covers=hidden)] if locked > dust else []
    if lost.value > dust:
        covers = ["contention"] if pieces else [*hidden, "contention"]
        pieces.append(_stage(ladder, "contention", lost, covers=covers))
    return pieces


def _of_the_workers(ladder: LadderView, found: Sides) -> list[Stage]:
    """Return the waiting time for the workers, divided among their stages."""
    parts = _by_time(ladder) or _by_rungs(ladder)
    whole = sum(part.ms.value for part in parts)
    pieces = []
    for part in parts:
        share = part.ms.value / whole if whole > 0 else 1 / len(parts)
        arm = max(min(_SHARE_ARM, share, 1 - share), part.ms.arm / whole if whole > 0 else 0.0)
        value = share * found.waits.value
        spread = math.hypot(arm * found.waits.value, share * found.waits.arm)
        ms = Interval(value, max(0.0, value - spread), value + spread)
        pieces.append(_stage(ladder, part.stage, ms, part.rung, part.covers, part.culprit, part.links))
    return pieces


def _part(
    stage: str, ms: float, covers: list[str], rung: str = "", place: Place | None = None, links: Sequence[str] = ()
) -> Stage:
    """Return a part of the workers' work by its milliseconds, of a worker or of the loop alike for all parts."""
    return Stage(stage, exactly(ms), 0.0, place, covers, rung, list(links))


def _by_time(ladder: LadderView) -> list[Stage]:
    """Return the parts of a worker's time for a batch under the baseline; empty if it was not probed."""
    inside, seen = ladder.session.inside, ladder.evidence("baseline")
    if inside is None or not inside.timed or "worker_ms" not in seen:
        return []
    batch = seen["worker_ms"]
    collating = seen.get("collate_ms", collating_apart(ladder))
    collating = collating_left(ladder, batch) if collating is None else collating
    work = divided(batch, batch, collating or 0.0, inside)
    storage = min(work.samples * inside.load.wall_ms / inside.whole.wall_ms, _cold(ladder) * batch)
    transforms = sum(work.links)
    more = 1 + work.between / transforms if transforms > 0 else 1.0  # the code that applies the links goes with them
    probed = sum(link.cost.wall_ms for link in inside.links)
    each = more * transforms / probed if probed > 0 else 0.0
    links = [
        _part("transform", each * one.cost.wall_ms, ["transform"], "", one.place, [one.name])
        for one in grains(inside.links)
    ]
    loading = max(0.0, work.samples - more * transforms - storage)
    hidden = not links and not ladder.has("raw")
    covers = ["collate"] * (collating is None) + ["transform"] * hidden + ["load"]
    parts = [*reversed(links), *_by_line(ladder, inside, "load", loading, covers, "warm")]
    if collating is not None:
        parts = [*_by_line(ladder, inside, "collate", work.collate, ["collate"], "sample"), *parts]
    return [*parts, _part("storage", storage, ["storage"], "baseline")] if storage > 0 else parts


def functions_measured(ladder: LadderView) -> list[str]:
    """Return the functions that were left out while the loop was timed."""
    return [function for function, rung in functions_left_out(ladder.session).items() if ladder.has(rung)]


def _by_line(ladder: LadderView, inside: Inside, stage: str, ms: float, covers: list[str], rung: str) -> list[Stage]:
    """Return loading or collating by the lines that take its time, as one part if they are unknown.

    The lines of each function that was left out while the loop was timed come together.
    """
    lines, code = of_stage(inside, stage, functions_measured(ladder)), culprit(ladder.session, stage)
    whole = sum(line.share for line in lines)
    parts = []
    for line in lines:
        made = code.made if code is not None and line.library else ""
        place = Place(line.name, line.where, line.library, made)
        parts.append(_part(stage, ms * line.share / whole, covers, rung, place, [line.name]))
    return parts or [_part(stage, ms, covers, rung)]


def worker_parts(ladder: LadderView) -> list[Stage]:
    """Return what the workers do for a batch, with its share of their time from 0 to 1; empty if they were not probed.

    The milliseconds are a worker's own, not those of a step.
    """
    parts = [part for part in _by_time(ladder) if part.ms.value > 0]
    whole = sum(part.ms.value for part in parts)
    return [replace(part, share=part.ms.value / whole) for part in parts]


def worker_shares(ladder: LadderView) -> dict[str, float]:
    """Return the shares of a worker's time for a batch by stage, from 0 to 1; empty if it was not probed."""
    shares = defaultdict[str, float](float)
    for part in worker_parts(ladder):
        shares[part.stage] += part.share
    return dict(shares)


def _cold(ladder: LadderView) -> float:
    """Return the share of a worker's time that goes into data outside the page cache: its saving on warm files.

    Two rungs with equally fast workers differ by chance; a difference within that noise is returned as 0. Warm files
    also save time that the CPU works: only blocked time was spent on storage.
    """
    if not ladder.has("warm"):
        return 0.0
    cold, warm = (ladder.evidence(rung).get("worker_ms", 0.0) for rung in ("baseline", "warm"))
    if cold <= 0 or warm <= 0:
        return 0.0
    windows = max(1, min(ladder.windows("baseline"), ladder.windows("warm")))
    part = min(1 - warm / cold, ladder.evidence("baseline").get("worker_blocked", 1.0))
    return part if part > 2 * WORKERS.sd / math.sqrt(windows) else 0.0


def _by_rungs(ladder: LadderView) -> list[Stage]:
    """Return each rung's cost over the rung below as a part, for sessions without worker times."""
    parts = []
    for rung in ladder.rungs:
        below = ladder.below(rung)
        if below is None or rung in OWN_SIDE:
            continue
        cost = ladder.cost(rung, below).not_negative()
        links, stage = ladder.links(rung), ladder.stage(rung)
        place, covers = None, ladder.covered(rung)
        if stage == "transform":
            whole = len(links) > 1 and len(links) == len(ladder.session.links)
            place = dominant(links) or (None if whole else joined(links))
        most = heaviest(ladder.session.inside)
        if stage == "load" and "transform" in covers and most is not None and most[1] >= CO_BOTTLENECK:
            place = most[0]  # by worker time: the rungs do not separate them
        names = [*dict.fromkeys(one.name for one in grains(links))] if stage == "transform" else []
        parts.append(Stage(stage, cost, 0.0, place, covers, rung, names))
    return parts or [_part("load", 1.0, ["collate", "transform", "load", "storage"], "baseline")]


def by_stage(ladder: LadderView, pieces: list[Stage]) -> list[Stage]:
    """Return the pieces with neighbours of the same stage joined: the links of the transforms become one stage.

    The culprit of a joined stage is its costliest part.
    """
    stages = []
    for stage, group in itertools.groupby(pieces, key=lambda part: part.stage):
        parts = list(group)
        if len(parts) == 1:
            stages += parts
            continue
        links = [name for part in reversed(parts) for name in part.links]
        ms, share = total([part.ms for part in parts]), sum(part.share for part in parts)
        joint = Stage(stage, ms, share, ranked(parts)[0].culprit, parts[-1].covers, parts[-1].rung, links)
        joint.without = without(ladder, what_if(ladder), joint, _stored(pieces))
        stages.append(joint)
    return stages


def input_stages(ladder: LadderView, pieces: list[Stage]) -> list[Stage]:
    """Return the stages of the input pipeline: all but ``compute``, costliest first."""
    return ranked([stage for stage in by_stage(ladder, pieces) if stage.stage != "compute"])


def ranked(parts: list[Stage]) -> list[Stage]:
    return sorted(parts, key=lambda part: part.ms.value, reverse=True)


def culprit(session: Session, stage: str) -> Place | None:
    """Return the user's code behind a stage, or None."""
    loader = session.loader
    if loader is None:
        return None
    places = {
        **dict.fromkeys(("startup", "transfer", "ipc", "contention"), Place("DataLoader", loader.where)),
        **dict.fromkeys(("load", "storage"), loader.dataset_code),
        "collate": loader.collate,
        "sampler": loader.sampler,
        "transform": loader.transform,
    }
    return places.get(stage)


def without(ladder: LadderView, numbers: WhatIf | None, piece: Stage, together: bool) -> Without:
    """Return the loop's speed without a piece of its step.

    Without loading the loop runs as under the rung ``raw``, which is a measurement, unless that removes more than this
    piece: it is ``together`` with storage or with other lines of loading. ``numbers`` is None if the loop was not fed
    from a cache.
    """
    step = ladder.ms("baseline").value
    place, waits = piece.culprit, sides(ladder).waits.value
    if place is not None and piece.links == [place.name] and waits > 0:
        measured = measured_without(ladder, piece.stage, place, piece.ms.value / waits)
        if measured is not None:
            return Without(min(1000.0 * measured.value / step, 1000.0 / ladder.best.value), True)
    if piece.stage == "load" and ladder.has("raw") and not together:
        return Without(1000.0 / min(step, ladder.beside("raw").value), True)
    if numbers is not None:
        return Without(1000.0 * speedup_without(ladder, numbers, piece).value / step, False)
    # As far as the loop's own waiting tells.
    if not ladder.session.workers or waits <= RESOLUTION * step:
        left = step - piece.ms.value
    else:
        left = max(step - waits, step * (1 - piece.ms.value / waits)) if piece.stage in OF_THE_WORKERS else step
    return Without(1000.0 / max(1e-6, left), False)


def measured_without(ladder: LadderView, stage: str, line: Place, part: float) -> Interval | None:
    """Return the speedup of the loop without a line or function, or None if that was not measured.

    Nor was it if less of the workers' time is missing then than of ``part``, its share; or if cold files cost the loop
    something, since under the rung they come from the page cache.
    """
    rung = rung_of(ladder.session, stage, line.name, line.where)
    took = ladder.evidence("baseline").get("worker_ms", 0.0)
    if not rung or not ladder.has(rung) or took <= 0 or _cold(ladder) > RESOLUTION:
        return None
    seen = ladder.evidence(rung)
    left = seen.get("worker_ms", took) - seen.get("copy_ms", 0.0)
    return largest(ladder.ratio("baseline", rung), exactly(1.0)) if 1 - left / took >= _LEFT_OUT * part else None


def speedup_without(ladder: LadderView, numbers: WhatIf, piece: Stage) -> Interval:
    """Return the speedup of a loop without a piece of its step: of the workers' time, or of the loop's own."""
    ms, waits = piece.ms, sides(ladder).waits.value
    if piece.stage not in OF_THE_WORKERS:
        step = ladder.ms("baseline").value  # the training process saves at most what the piece takes
        left = Interval(*(max(1e-6, step - end) for end in (ms.value, ms.high, ms.low)))
        return least(numbers.faster(Change(loop=ms)), left.inverse(step))
    share = Interval(*(min(1.0, max(0.0, end / waits)) if waits > 0 else 0.0 for end in (ms.value, ms.low, ms.high)))
    if numbers.workers and numbers.work is not None:
        return numbers.faster(Change(work=share.times(numbers.work.run)))
    return numbers.faster(Change(supply=exactly(1.0).minus(share).not_negative()))
