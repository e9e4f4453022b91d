"""Recommend something for the costliest stage if no rule does: a certain cost never stays without a next step.

The gain is that of a loop without the stage, which is a bound.
"""

from __future__ import annotations

from dataclasses import replace

from ...session import LOADED_ONCE, Session
from ..amortised import OTHER_LOADERS
from ..diagnosis import Recommendation, Stage
from ..numbers.chain import grains_of
from ..numbers.hot_lines import hottest, of_stage
from ..numbers.intervals import Interval
from ..numbers.ladder import LadderView
from ..thresholds import CO_BOTTLENECK, WORTH
from ..trials.remedy import outcome
from ..trials.threads import wanting_to_run
from ..waterfall import speedup_without
from ..whatif import WhatIf
from ..words import number, percent, shown
from . import cheaper
from .lines import what_helps
from .tried import refuted
from .view import ALL, at_line, in_the_loader


def for_stage(ladder: LadderView, numbers: WhatIf | None, stage: Stage) -> Recommendation:
    """Return what can be done about a stage of the input pipeline in general, with the line to change.

    ``numbers`` is None if the loop was not fed from a cache: then no gain can be predicted.
    """
    session, base = ladder.session, ladder.ms("baseline").value
    title, how, risk = _in_general(session, stage)
    gain = _without(ladder, numbers, stage) if numbers is not None else None
    unit = "step" if session.counts_steps else "second"
    step = f"of a {number(base)} ms {unit}" if stage.without is not None else f"for each {unit} of {number(base)} ms"
    told = f"{shown(stage.stage)} costs {number(stage.ms.value)} ms {step}"
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


#: Title, instruction and risk for stages about which nothing of the run says more.
_ALIKE = {
    "storage": (
        "Read less, or from storage that keeps up",
        "the data on a local disk or in /dev/shm; many samples in one file; a larger prefetch_factor",
        "a copy of the data must be kept up to date",
    ),
    "collate": (
        "Collate fewer and smaller pieces",
        "one tensor for each sample, of uint8 where values fit into a byte, in place of lists of objects; or batches "
        "made at once in __getitems__, with collate_fn=lambda batch: batch",
        "the training has to unpack what was packed",
    ),
    "ipc": (
        "Hand over batches in fewer and smaller pieces",
        "one tensor in place of lists of tensors or objects, bytes in place of floats",
        "the device has to unpack what was packed",
    ),
    OTHER_LOADERS: (
        "Use the other loader less often, or make its batches cheaper",
        "fewer batches of it, or more steps in between; persistent_workers=True keeps its workers, if it has any",
        "what it is used for, such as a validation, is known less often",
    ),
}


def _in_general(session: Session, stage: Stage) -> tuple[str, str, str]:
    """Return title, instruction and risk of what can be done about a stage."""
    if stage.stage in ("load", "collate"):
        lines = of_stage(session.inside, stage.stage) if session.inside is not None else []
        line = max(lines, key=lambda line: line.share, default=None)
        if line is not None:
            return what_helps(line, session.device_type == "cpu")
    if stage.stage in _ALIKE:
        return _ALIKE[stage.stage]
    loader, in_loader = session.loader, in_the_loader(session.loader)
    match stage.stage:
        case "load":
            tried = outcome(session, LOADED_ONCE)
            refused = tried is not None and (tried.speedup is None or tried.speedup.low <= 1)
            kept = ", or keep them with pipediag.cache(loader)"
            kept *= not (refused or (loader is not None and loader.uncached))
            how = f", or whole batches made in __getitems__{kept}"
            if loader is not None and loader.plain_iterable:
                how = ", or made by the workers of a DataLoader beside the training"
            return (
                "Load samples in fewer steps, or prepare them beforehand",
                f"samples stored as training needs them{how}",
                "prepared samples must be rebuilt when the data changes",
            )
        case "transform":
            return _transform(session, stage)
        case "contention":
            return _contention(session)
        case "sampler":
            name = loader.sampler.name if loader is not None and loader.sampler is not None else "the sampler"
            return (
                f"Make {name} cheaper",
                "indices of many batches chosen at once, with whole arrays; no worker runs the sampler",
                "another way of choosing may give other batches",
            )
        case "transfer":
            pinned = (loader is not None and loader.pin_memory) or refuted(session, "pin-memory")
            pins = "" if pinned else f"pin_memory=True {in_loader} and "
            return (
                "Copy fewer bytes to the device, ahead of the step",
                f'bytes in place of floats; {pins}.to("{session.device_type}", non_blocking=True) in the loop',
                "the device has to convert what it gets",
            )
        case "startup":
            if loader is not None and loader.persistent_workers:
                return (
                    "Begin epochs less often, or make their first batch cheaper",
                    f"longer epochs, or less work for a batch {in_loader}; the workers persist already",
                    "longer epochs are validated less often",
                )
            return (
                "Start workers less often, or make their start and first batch cheaper",
                f"longer epochs, fewer imports and less work in worker_init_fn, fewer workers {in_loader}",
                "longer epochs are validated less often",
            )
    named = shown(stage.stage)
    return f"Make {named} cheaper", "do less of it for each sample", "another way may give other samples"


def _transform(session: Session, stage: Stage) -> tuple[str, str, str]:
    name, several = stage.culprit.name if stage.culprit is not None else "", len(stage.links) > 1
    known = [
        f"{way.what}: {way.how}"
        for link in session.links
        for module, one in grains_of(link)
        if one.name == name
        for way in cheaper.alternatives(replace(link, name=name, origin=module), session.links)
    ]
    title = f"Make {name or 'the transforms'} cheaper"
    if several:
        title = f"Make the transforms cheaper{name and f', {name} first'}"
    hot = next((line for line in hottest(session.inside, "transform") if line.share >= CO_BOTTLENECK), None)
    if not known and hot is not None:
        return title, *what_helps(hot, session.device_type == "cpu")[1:]
    how = "; ".join(dict.fromkeys(known)) or "fewer or smaller operations on each sample"
    return title, how, "other transforms give other samples"


def ways_to_leave_a_core(session: Session) -> list[str]:
    """Return how fewer workers or threads may take less CPU time from the training process, if no trial refuted it."""
    ways = []
    if session.workers > 1 and not refuted(session, "fewer-workers"):
        ways.append(f"num_workers={session.workers - 1} {in_the_loader(session.loader)}")
    if wanting_to_run(session).can_be_fewer:
        ways.append("OMP_NUM_THREADS or torch.set_num_threads, so that all threads fit the cores")
    return ways


def _contention(session: Session) -> tuple[str, str, str]:
    if ways := ways_to_leave_a_core(session):
        return (
            "Leave the training process a core of its own",
            f"{'; '.join(ways)}; less work for the workers helps as well",
            "fewer batches are in reserve when a few samples take longer",
        )
    line = next((one for one in hottest(session.inside) if one.share >= CO_BOTTLENECK), None)
    first = f", first at {line.where} ({percent(line.share)} of a sample's time)" if line is not None else ""
    return (
        "Give the workers less work",
        f"cheaper operations on each sample, or samples prepared beforehand{first}",
        "other operations may give other samples",
    )
