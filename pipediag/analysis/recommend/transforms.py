"""Rules for the transforms: move them, reorder them, precompute them, make them cheaper."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...session import Alternative, Link
from ...session.remedies import listed
from ..diagnosis import Recommendation
from ..numbers.chain import grains_of
from ..numbers.hot_lines import hottest, is_python, of_stage, within
from ..numbers.intervals import Interval
from ..numbers.loop_and_workers import Work, saving
from ..numbers.paired_windows import LEAST
from ..thresholds import CO_BOTTLENECK, WORTH
from ..trials.remedy import outcome
from ..whatif import Change
from ..words import counted, named, number, percent
from . import cheaper
from .lines import LOOPS, SAME_RESULTS, way_for, what_helps
from .view import ALL, View, at_line, bytes_text, leaf_text, measured_first, s, share_text

#: The place of a crop or resize in the chain matters if it keeps less than this share of its input.
_SMALLER = 0.9
#: Lines are named from this share of a sample's time on.
_HOT = 0.2
#: Largest number of transforms for which cheaper ways are recommended.
_NAMED = 3


def offload(view: View) -> Recommendation | None:
    """Recommend moving the end of the chain to the device; after a trial, the transforms that it moved."""
    links, work = view.session.links, view.work
    if view.on_cpu or work is None or view.loader.iterable:
        return None
    came = outcome(view.session)
    if came is not None and (came.why_not or came.speedup is None or came.speedup.high < LEAST):
        return None
    sure, probable = _movable(view)
    if not probable:
        return None
    moving = [links[n] for n in probable]
    # Bytes per sample that the workers send; 0 if unknown.
    now, then = moving[-1].bytes_out, moving[0].bytes_in * cheaper.part_needed(moving)
    sent = then / now if now and then else 1.0
    change = view.whatif.moved(probable, sure, view.batch.device_copy_ms, sent, sum(map(cheaper.recordings, moving)))
    if change.work.value <= 0:
        return None
    names = [link.name for link in moving]
    took = sum(work.links[n] for n in probable)
    evidence = [
        f"{listed(names)} take{s(names)} a worker {view.per_sample(took)}, {share_text(took, work.run)} of its time"
    ]
    if 0 < then < now:
        evidence.append(f"{bytes_text(then)} per sample then cross the bus instead of {bytes_text(now)}")
    if probable[0] > 0:
        before, why = links[probable[0] - 1], "it has no kernel on the device"
        if not cheaper.is_torchvisions(before):
            why = "it is not torchvision's, and moves only if all it does to images can be recorded"
        evidence.append(f"{named(before)} and everything before it stay in the workers: {why}")
    where = f"  # before {view.loader.where}" if view.loader.where else ""
    return view.made(
        "offload",
        f"Move {listed(names) if len(names) < 4 else f'the last {len(names)} transforms'} to the device",
        "transform",
        change,
        evidence,
        f'loader = pipediag.offload(loader, "{view.device}"){where}{measured_first(view.session)}',
        "the device does this work in addition to the step, which costs time if it is busy already; "
        "loader.certificate says how far its pixels differ from the workers'",
        came.speedup if came is not None else None,
    )


def _movable(view: View) -> tuple[list[int], list[int]]:
    """Return the indices of the links that surely move, and of those that probably move.

    Both lists reach the chain's end, unless a trial has moved links: then both are those links.
    """
    links, remedy = view.session.links, view.session.remedy or view.session.decoded
    if remedy is not None and remedy.moved:
        moved = {(place.name, place.where) for place in remedy.moved}
        found = [number for number, link in enumerate(links) if (link.name, link.where) in moved]
        return found, found
    answers = [cheaper.moves(link) for link in links]
    if view.inside.unsplit and not all(answers):
        return [], []  # samples may take another order
    # A transform that holds others may hold some that do not move.
    return _suffix([answer is True for answer in answers]), _suffix([answer is not False for answer in answers])


def _suffix(fits: Sequence[bool]) -> list[int]:
    """Return the indices of the longest suffix that is all true."""
    first = len(fits)
    while first and fits[first - 1]:
        first -= 1
    return list(range(first, len(fits)))


def reorder(view: View) -> Recommendation | None:
    """Recommend moving a crop or resize before transforms that give the same result on what it keeps."""
    links, work = view.session.links, view.work
    if work is None or view.inside.unsplit:
        return None
    found: list[tuple[float, int, int]] = []
    for at, cut in enumerate(links):
        first = at
        while first and cheaper.can_follow(links[first - 1], cut):
            first -= 1
        if first < at and 0 < cut.bytes_out < _SMALLER * cut.bytes_in:
            found.append((sum(work.links[first:at]) * (1 - cut.bytes_out / cut.bytes_in), first, at))
    if not found:
        return None
    saved, first, at = max(found)
    cut, before = links[at], links[first:at]
    took = sum(work.links[first:at])
    names = [link.name for link in before]
    return view.made(
        "reorder",
        f"Put {cut.name} before {listed(names)}",
        "transform",
        Change(work=saving(saved)),
        [
            f"{cut.name} keeps {share_text(cut.bytes_out, cut.bytes_in)} of its input",
            f"{listed(names)} take{s(names)} {view.per_sample(took)} on all of it, and would take "
            f"{view.per_sample(took - saved)} on what is kept",
        ],
        f"in the list of transforms, {named(cut)} before {named(before[0])}",
        "the random numbers are drawn in another order: the same augmentations, but not sample by sample; pixels "
        "differ at the edges, or where they are resized",
    )


def precompute(view: View) -> Recommendation | None:
    """Recommend precomputing the leading transforms that give the same result in every epoch."""
    links, work = view.session.links, view.work
    if work is None or view.inside.unsplit:
        return None
    names = [link.name for link in itertools.takewhile(cheaper.is_deterministic, links)]
    took = sum(work.links[: len(names)])
    if took <= 0:
        return None
    first, last = links[0], links[len(names) - 1]
    evidence = [
        f"{listed(names)} give{s(names)} the same result for a sample in every epoch, and take{s(names)} "
        f"{view.per_sample(took)}, {share_text(took, work.run)} of a worker's time"
    ]
    kept, room = 1.0, ""
    if first.bytes_in > 0 and last.bytes_out > 0:
        kept = last.bytes_out / first.bytes_in
        room = f", {number(kept)} times as large as their input,"
        evidence.append(f"{bytes_text(first.bytes_in)} a sample become {bytes_text(last.bytes_out)}")
    saved = saving(took)
    return view.made(
        "precompute",
        f"Apply {listed(names)} once, when the dataset is prepared",
        "transform",
        # The data to read and decode shrinks too, at best in proportion.
        Change(work=Interval(saved.value, saved.low, saved.high + max(0.0, 1 - kept) * work.load)),
        evidence,
        f"store the samples with {named(first)}{f' to {named(last)}' if last is not first else ''} applied, and remove "
        "that from the list of transforms",
        f"the stored samples{room} must be rebuilt when these transforms change",
    )


def cheaper_ways(view: View) -> list[Recommendation]:
    """Recommend a cheaper way for each transform whose work costs the loop a worthwhile gain, costliest first.

    A way that a worker has tried on the transform's own inputs is recommended with the gain that its time predicts.
    Without one, the gain is that of a loop without the transform, which is a bound.
    """
    work, links = view.work, view.session.links
    whole = sum(link.cost.wall_ms for link in links)
    if work is None or whole <= 0:
        return []
    batch = sum(work.links) / whole  # a worker's milliseconds for a batch, for each one for a sample
    took: dict[tuple[str, str, str], float] = {}
    found: dict[tuple[str, str, str], Link] = {}
    for link in links:
        for module, one in grains_of(link):
            key = one.name, one.where, module
            took[key] = took.get(key, 0.0) + batch * one.cost.wall_ms
            library = link.library and one.where == link.where
            found.setdefault(key, replace(link, name=one.name, where=one.where, origin=module, library=library))
    return [
        _instead(view, work, found[key], ms) or _made_cheaper(view, work, found[key], ms)
        for key, ms in sorted(took.items(), key=lambda item: -item[1])[:_NAMED]
        if view.whatif.faster(Change(work=saving(ms))).value >= WORTH
    ]


def _instead(view: View, work: Work, link: Link, ms: float) -> Recommendation | None:
    """Return the best of the ways that were tried in place of a transform, or None if none is worth a change."""
    tried = [one for one in view.session.alternatives if (one.name, one.where) == (link.name, link.where)]
    best = max(tried, key=lambda one: 1 - one.ms_instead / one.ms, default=None)
    way = cheaper.by_key(best.key) if best is not None else None
    if best is None or way is None:
        return None
    change = Change(work=saving(ms * (1 - best.ms_instead / best.ms)))
    if view.whatif.faster(change).value < WORTH:
        return None
    pixels = f"; other pixels, {difference(best)}" if way.pixels else ""
    return view.made(
        "instead",
        f"{link.name} {way.what}{', other pixels' if way.pixels else ''}",
        "transform",
        change,
        [
            f"{named(link)} takes {view.per_sample(ms)}, {share_text(ms, work.run)} of a worker's time",
            f"tried in a worker on {counted(best.inputs, 'input')} of its own: {number(best.ms)} ms each become "
            f"{number(best.ms_instead)} ms{pixels}",
        ],
        f"{at_line(link)}{way.how}",
        f"other pixels: {way.pixels}" if way.pixels else "pixels may be rounded in another way",
    )


def difference(tried: Alternative) -> str:
    """Return how far the pixels of two ways lie apart, in words."""
    if tried.difference is None:
        return "not comparable one by one"
    return f"{number(tried.difference)} of 255 levels apart on average"


#: Transforms that give all samples one size, so that none can do without.
_SIZES = ("CenterCrop", "RandomCrop", "RandomResizedCrop", "Resize")


def _made_cheaper(view: View, work: Work, link: Link, ms: float) -> Recommendation:
    """Return the bound for a transform for which nothing that was tried is cheaper."""
    evidence = [f"{named(link)} takes {view.per_sample(ms)}, {share_text(ms, work.run)} of a worker's time: {ALL}"]
    made = partial(view.made, title=f"Make {link.name} cheaper", stage="transform", at_most=True)
    change = Change(work=saving(ms))
    if cheaper.is_stock(link):
        tried = {one.key for one in view.session.alternatives if (one.name, one.where) == (link.name, link.where)}
        ways = [one for one in cheaper.alternatives(link, view.session.links) if one.key not in tried]
        if tried:
            refuted = [way.what for key in sorted(tried) if (way := cheaper.by_key(key)) is not None]
            evidence.append(f"tried in a worker, and hardly cheaper: {listed(refuted)}")
        less = "less for it to do: images stored at about the size that training uses"
        less = less if link.name in _SIZES else "leave it out, or apply it to a part of the samples"
        told = [f"{one.what}: {one.how}" for one in ways] or [less]
        return made(
            "cheaper",
            change=change,
            evidence=evidence,
            how=f"{at_line(link)}{'; '.join(told)}",
            risk="; ".join(dict.fromkeys(one.pixels for one in ways if one.pixels)) or "other augmentation",
        )
    hot = [line for line in hottest(view.inside, "transform") if line.share >= _HOT]
    hot = [line for line in hot if not line.transforms or link.name in line.transforms][:2]
    own = [line for line in hot if line.function == link.name or line.function.startswith(f"{link.name}.")]
    known = (
        line for line in own if way_for(line, view.on_cpu) or (line.share >= CO_BOTTLENECK and not is_python(line))
    )
    others = {one.name for one in view.session.links} - {link.name}
    below = within(view.inside, link.name, others, ms / work.run)
    line = next(known, below)
    place = below.where if below is not None else link.where or link.name
    _, how, risk = what_helps(line, view.on_cpu) if line is not None else ("", LOOPS, SAME_RESULTS)
    return made(
        "rewrite",
        change=change,
        evidence=[
            *evidence,
            *(f"{percent(line.share)} of a sample's time: {line.where} {line.text}".rstrip() for line in hot),
        ],
        how=f"{place}: {how}; written with torchvision's functions it can move to the device with pipediag.offload",
        risk=risk,
    )


def collate(view: View) -> Recommendation | None:
    """Recommend optimising a collate function of the user's whose hot lines are not known; see :mod:`.lines`."""
    work, place = view.work, view.loader.collate
    if work is None or work.collate <= 0 or place is None or not place.where or of_stage(view.inside, "collate"):
        return None
    evidence = [
        f"{named(place)} takes a worker {number(work.collate)} ms a batch, {share_text(work.collate, work.run)} of its "
        f"time: {ALL}"
    ]
    if view.batch.leaves:
        largest = max(view.batch.leaves, key=lambda leaf: leaf.nbytes)
        evidence.append(f"the largest tensor that it makes is {leaf_text(largest)}")
    return view.made(
        "collate",
        f"Make {place.name} cheaper",
        "collate",
        Change(work=saving(work.collate)),
        evidence,
        f"{place.where}: one torch.stack or torch.cat for the batch in place of work on each sample; leave "
        "conversions to the device",
        "another implementation has to give the same batches",
        at_most=True,
    )
