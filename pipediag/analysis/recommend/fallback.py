"""Recommend something for the costliest stage if no rule does: a certain cost never stays without a next step.

The gain is that of a loop without the stage, which is a bound.
"""

from __future__ import annotations

from dataclasses import replace

from ...session import Session
from ..chain import grains_of
from ..diagnosis import Recommendation, Stage
from ..hot_lines import hottest
from ..intervals import Interval
from ..ladder import LadderView
from ..sentences import number, percent, shown
from ..thresholds import WORTH
from . import stock
from .view import ALL, at_line, in_the_loader


def for_stage(ladder: LadderView, stage: Stage) -> Recommendation:
    """Return what can be done about a stage of the input pipeline in general, with the line to change."""
    session, base = ladder.session, ladder.ms("baseline").value
    title, how, risk = _IN_GENERAL.get(stage.stage, _any)(session, stage)
    gain = _without(ladder, stage)
    told = f"{shown(stage.stage)} costs {number(stage.ms.value)} ms of a {number(base)} ms step"
    if gain is not None:
        evidence = [f"{told}: {ALL}"]
    elif ladder.intervened:
        evidence = [f"{told}; without it alone, another stage limits the loop"]
    else:
        evidence = [f"{told}; no gain can be predicted, since the loop was not fed from a cache"]
    if stage.stage in ("load", "transform", "storage"):
        lines = hottest(session.inside, "load" if stage.stage == "storage" else stage.stage)
        hot = [f"{percent(one.share)} of a sample's time: {one.where} {one.text}" for one in lines[:2]]
        evidence += [text.rstrip() for text in hot]
    return Recommendation(
        "stage", title, stage.stage, gain, None, evidence, at_line(stage.culprit) + how, risk, at_most=True
    )


def _without(ladder: LadderView, stage: Stage) -> Interval | None:
    """Return the speedup of a loop without a stage, or None if it is not certain that there is any."""
    if stage.without is None or not ladder.intervened or stage.ms.low <= 0:
        return None
    gain = stage.without.steps_per_s * ladder.ms("baseline").value / 1000.0
    if gain < WORTH:
        return None
    return Interval(gain, gain ** (stage.ms.low / stage.ms.value), gain ** (stage.ms.high / stage.ms.value))


def _load(session: Session, stage: Stage) -> tuple[str, str, str]:
    kept = (
        "" if session.loader is not None and session.loader.uncached else ", or keep them with pipediag.cache(loader)"
    )
    return (
        "Load samples in fewer steps, or prepare them beforehand",
        f"samples stored as training needs them, or whole batches made in __getitems__{kept}",
        "prepared samples must be rebuilt when the data changes",
    )


def _storage(session: Session, stage: Stage) -> tuple[str, str, str]:
    return (
        "Read less, or from storage that keeps up",
        "the data on a local disk or in /dev/shm; many samples in one file; a larger prefetch_factor",
        "a copy of the data must be kept up to date",
    )


def _transform(session: Session, stage: Stage) -> tuple[str, str, str]:
    name = stage.culprit.name if stage.culprit is not None else ""
    known = [
        f"{way.what}: {way.how}"
        for link in session.links
        for module, one in grains_of(link)
        if one.name == name
        for way in stock.alternatives(replace(link, name=name, origin=module))
    ]
    return (
        f"Make {name or 'the transforms'} cheaper",
        "; ".join(dict.fromkeys(known)) or "fewer or smaller operations on each sample",
        "other transforms give other samples",
    )


def _collate(session: Session, stage: Stage) -> tuple[str, str, str]:
    return (
        "Collate fewer and smaller pieces",
        "one tensor for each sample, of uint8 where values fit into a byte, in place of lists of objects; or batches "
        "made at once in __getitems__, with collate_fn=lambda batch: batch",
        "the training has to unpack what was packed",
    )


def _ipc(session: Session, stage: Stage) -> tuple[str, str, str]:
    return (
        "Hand over batches in fewer and smaller pieces",
        "one tensor in place of lists of tensors or objects, bytes in place of floats",
        "the device has to unpack what was packed",
    )


def _transfer(session: Session, stage: Stage) -> tuple[str, str, str]:
    copies = f'.to("{session.device_type}", non_blocking=True) in the loop'
    return (
        "Copy fewer bytes to the device, ahead of the step",
        f"pin_memory=True {in_the_loader(session.loader)} and {copies}; pipediag.offload(loader) copies ahead of it",
        "pinned memory is not swapped out",
    )


def _contention(session: Session, stage: Stage) -> tuple[str, str, str]:
    return (
        "Leave the training process a core of its own",
        f"num_workers={max(1, session.workers - 1)} {in_the_loader(session.loader)}; OMP_NUM_THREADS or "
        "torch.set_num_threads, so that all threads fit the cores; less work for the workers helps as well",
        "fewer batches are in reserve when a few samples take longer",
    )


def _any(session: Session, stage: Stage) -> tuple[str, str, str]:
    return f"Make {shown(stage.stage)} cheaper", "do less of it for each sample", "another way may give other samples"


_IN_GENERAL = {
    "load": _load,
    "storage": _storage,
    "transform": _transform,
    "collate": _collate,
    "ipc": _ipc,
    "transfer": _transfer,
    "contention": _contention,
}
