"""Recommend something for the costliest stage if no rule does: a certain cost never stays without a next step.

The gain is that of a loop without the stage, which is a bound.
"""

from __future__ import annotations

from dataclasses import replace

from ...session import LOADED_ONCE, Session
from ..amortised import OTHER_LOADERS, STARTUP
from ..diagnosis import Recommendation, Stage
from ..numbers.chain import grains_of
from ..numbers.cores import threads
from ..numbers.hot_lines import hottest, of_stage
from ..numbers.intervals import Interval
from ..numbers.ladder import LadderView
from ..thresholds import CO_BOTTLENECK, WORTH
from ..trials.remedy import outcome
from ..waterfall import speedup_without
from ..whatif import WhatIf
from ..words import number, percent, shown
from . import stock
from .lines import what_helps
from .tried import refuted
from .view import ALL, at_line, in_the_loader


def for_stage(ladder: LadderView, numbers: WhatIf | None, stage: Stage) -> Recommendation:
    """Return what can be done about a stage of the input pipeline in general, with the line to change.

    ``numbers`` is None if the loop was not fed from a cache: then no gain can be predicted.
    """
    session, base = ladder.session, ladder.ms("baseline").value
    title, how, risk = _IN_GENERAL.get(stage.stage, _any)(session, stage)
    gain = _without(ladder, numbers, stage) if numbers is not None else None
    told = f"{shown(stage.stage)} costs {number(stage.ms.value)} ms of a {number(base)} ms step"
    if stage.without is None:
        told = f"{shown(stage.stage)} costs {number(stage.ms.value)} ms for each step of {number(base)} ms"
    if gain is not None:
        evidence = [f"{told}: {ALL}"]
    elif numbers is not None:
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


def _without(ladder: LadderView, numbers: WhatIf, stage: Stage) -> Interval | None:
    """Return the speedup of a loop without a stage, or None if it is not certain that there is any."""
    base = ladder.ms("baseline").value
    if stage.ms.low <= 0:
        return None
    if stage.without is None:  # paid between the steps
        gain = stage.ms.shifted(base).times(1 / base)
    elif stage.without.measured:
        value = stage.without.steps_per_s * base / 1000.0
        gain = Interval(value, value ** (stage.ms.low / stage.ms.value), value ** (stage.ms.high / stage.ms.value))
    else:
        gain = speedup_without(ladder, numbers, stage)
    return gain if gain.value >= WORTH and gain.low > 1 else None


def _load(session: Session, stage: Stage) -> tuple[str, str, str]:
    if (known := _by_line(session, stage)) is not None:
        return known
    tried, uncached = outcome(session, LOADED_ONCE), session.loader is not None and session.loader.uncached
    refused = uncached or (tried is not None and (tried.speedup is None or tried.speedup.low <= 1))
    kept = "" if refused else ", or keep them with pipediag.cache(loader)"
    return (
        "Load samples in fewer steps, or prepare them beforehand",
        f"samples stored as training needs them, or whole batches made in __getitems__{kept}",
        "prepared samples must be rebuilt when the data changes",
    )


def _by_line(session: Session, stage: Stage) -> tuple[str, str, str] | None:
    """Return what can be done about the line that takes most of a stage's time, or None if the lines are unknown."""
    lines = of_stage(session.inside, stage.stage) if session.inside is not None else []
    line = max(lines, key=lambda line: line.share, default=None)
    return what_helps(line, session.device_type == "cpu") if line is not None else None


def _hottest(session: Session, stage: str) -> str:
    """Return the line that takes most of a sample's time, as the beginning of an instruction; empty if none does."""
    line = next((one for one in hottest(session.inside, stage) if one.share >= CO_BOTTLENECK), None)
    if line is None:
        return ""
    return f"{line.where} takes {percent(line.share)} of a sample's time{line.text and f', `{line.text}`'}; "


def _storage(session: Session, stage: Stage) -> tuple[str, str, str]:
    return (
        "Read less, or from storage that keeps up",
        "the data on a local disk or in /dev/shm; many samples in one file; a larger prefetch_factor",
        "a copy of the data must be kept up to date",
    )


def _transform(session: Session, stage: Stage) -> tuple[str, str, str]:
    name, several = stage.culprit.name if stage.culprit is not None else "", len(stage.links) > 1
    known = [
        f"{way.what}: {way.how}"
        for link in session.links
        for module, one in grains_of(link)
        if one.name == name
        for way in stock.alternatives(replace(link, name=name, origin=module))
    ]
    title = f"Make {name or 'the transforms'} cheaper"
    if several:
        title = f"Make the transforms cheaper{name and f', {name} first'}"
    return (
        title,
        "; ".join(dict.fromkeys(known))
        or f"{_hottest(session, 'transform')}fewer or smaller operations on each sample",
        "other transforms give other samples",
    )


def _collate(session: Session, stage: Stage) -> tuple[str, str, str]:
    if (known := _by_line(session, stage)) is not None:
        return known
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


def _sampler(session: Session, stage: Stage) -> tuple[str, str, str]:
    place = session.loader.sampler if session.loader is not None else None
    name = place.name if place is not None else "the sampler"
    return (
        f"Make {name} cheaper",
        "indices of many batches chosen at once, with whole arrays; no worker runs the sampler",
        "another way of choosing may give other batches",
    )


def _transfer(session: Session, stage: Stage) -> tuple[str, str, str]:
    copies = f'.to("{session.device_type}", non_blocking=True) in the loop'
    pinned = session.loader is not None and session.loader.pin_memory
    pins = f"pin_memory=True {in_the_loader(session.loader)} and "
    if pinned or refuted(session, "pin-memory"):
        pins = ""
    return (
        "Copy fewer bytes to the device, ahead of the step",
        f"bytes in place of floats; {pins}{copies}",
        "the device has to convert what it gets",
    )


def _startup(session: Session, stage: Stage) -> tuple[str, str, str]:
    return (
        "Start workers less often, or make their start and first batch cheaper",
        f"longer epochs, fewer imports and less work in worker_init_fn, fewer workers {in_the_loader(session.loader)}",
        "longer epochs are validated less often",
    )


def _other_loaders(session: Session, stage: Stage) -> tuple[str, str, str]:
    return (
        "Use the other loader less often, or make its batches cheaper",
        "fewer batches of it, or more steps in between; persistent_workers=True keeps its workers, if it has any",
        "what it is used for, such as a validation, is known less often",
    )


def ways_to_leave_a_core(session: Session) -> list[str]:
    """Return how fewer workers or threads may take less CPU time from the training process, if no trial refuted it."""
    ways = []
    if session.workers > 1 and not refuted(session, "fewer-workers"):
        ways.append(f"num_workers={session.workers - 1} {in_the_loader(session.loader)}")
    if threads(session).can_be_fewer:
        ways.append("OMP_NUM_THREADS or torch.set_num_threads, so that all threads fit the cores")
    return ways


def _contention(session: Session, stage: Stage) -> tuple[str, str, str]:
    ways = ways_to_leave_a_core(session)
    if not ways:
        return (
            "Give the workers less work",
            f"{_hottest(session, '')}cheaper operations on each sample, or samples prepared beforehand",
            "other operations may give other samples",
        )
    return (
        "Leave the training process a core of its own",
        f"{'; '.join(ways)}; less work for the workers helps as well",
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
    "sampler": _sampler,
    "transfer": _transfer,
    "contention": _contention,
    STARTUP: _startup,
    OTHER_LOADERS: _other_loaders,
}
