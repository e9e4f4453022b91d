"""Check the loader: whether the loop waits for it, and its settings."""

from __future__ import annotations

import math
import statistics

from ..cores import threads
from ..halving import arms
from ..recommend import tried
from ..sentences import counted, number, percent, span, times
from ..thresholds import GATE, QUEUED
from ..verdict import startup_ms
from ..waterfall import OF_THE_WORKERS
from ..whatif import what_if
from .item import FAILED, OPEN, PASSED, UNMEASURABLE, Check, Item, against, margin

#: Ids of the recommendations that change only the loader's settings.
KNOBS = frozenset({*tried.IDS, "persistent-workers"})
_CORES = frozenset({"threads", "fewer-workers", "more-cores"})
#: Maximum number of recommendations that one item names; the report has them all.
_NAMED = 3


def starvation(check: Check) -> Item:
    """Check the input pipeline's cost per step against the gate."""
    title = f"input costs at most {percent(check.gate)} of a step"
    ladder, starved = check.ladder, check.diagnosis.verdict.starved
    if starved is None:
        return Item("starvation", title, UNMEASURABLE, check.diagnosis.verdict.sentence)
    status = against(starved, check.gate)
    base, best = number(ladder.ms("baseline").value), number(ladder.ms(ladder.ceiling).value)
    told = (
        f"{percent(max(0.0, starved.value))} ({span(starved)}): {base} ms with the loader, {best} with cached batches"
    )
    if status == UNMEASURABLE:
        return Item("starvation", title, status, f"{told}; {OPEN}")
    if status == PASSED:
        return Item("starvation", title, status, told)
    advice = [one for one in check.diagnosis.recommendations if one.stage != "compute"]
    return Item("starvation", title, status, told, advice[:_NAMED], [] if advice else [check.diagnosis.nothing_to_gain])


def supply(check: Check) -> Item:
    """Check the rate of the loader alone against the rate of training with batches ready."""
    title = "the loader alone is faster than the training"
    ladder = check.ladder
    why = check.lacking("baseline", "supply")
    if not why and not check.loader.num_workers:
        why = "num_workers=0: batches are made between the steps, not beside them"
    if not why and len(ladder.rungs) < 2:
        why = check.lacking("device")
    if why:
        return Item("supply", title, UNMEASURABLE, why)
    found = margin(ladder)
    makes, takes = (number(1000.0 / ladder.ms(rung).value) for rung in ("supply", ladder.ceiling))
    told = f"it makes {times(found)} what the training consumes at its best: "
    told += f"{makes} against {takes} batches/s"
    status = against(found.inverse(), 1.0)
    if status == FAILED:
        advice = [one for one in check.diagnosis.recommendations if one.stage in OF_THE_WORKERS]
        todo = [] if advice else ["see what the input costs"]
        return Item("supply", title, status, told, advice[:_NAMED], todo)
    return Item("supply", title, status, told if status == PASSED else f"{told}; {OPEN}")


def startup(check: Check) -> Item:
    """Check the cost of an epoch's start, spread over its steps."""
    title = "epochs begin without a long wait"
    loader, paid = check.loader, check.session.startups
    each = startup_ms(check.session)
    why = check.lacking("baseline")
    if not why and not loader.length:
        why = "the loader does not know its length: there is no epoch to spread its beginning over"
    if not why and each is None:
        kept = loader.persistent_workers and bool(paid)
        why = "the workers are kept, and no second epoch was seen to begin" if kept else "no epoch was seen to begin"
    if why or each is None:
        return Item("startup", title, UNMEASURABLE, why)
    share = each / (check.ladder.ms("baseline").value + each)
    seconds = statistics.median(one.seconds for one in paid if one.renewed or not loader.persistent_workers)
    told = f"{number(seconds)} s from iter() to the first batch, {number(each)} ms a step over an epoch of "
    told += f"{loader.length} batches: {percent(share)} of the time"
    if share <= GATE:
        return Item("startup", title, PASSED, told)
    advice = check.advice({"persistent-workers"})
    return Item("startup", title, FAILED, told, advice, [] if advice else ["longer epochs, or a cheaper first batch"])


def cores(check: Check) -> Item:
    """Check workers and threads against the cores that they may use."""
    title = "workers and threads have the cores they need"
    loader, running = check.loader, threads(check.session)
    why = check.lacking("baseline")
    seen = {} if why else check.ladder.evidence("baseline")
    if not why and not loader.num_workers:
        why = "num_workers=0: there are no workers beside the training process"
    if not why and math.isinf(running.cores):
        why = "the number of usable cores is not known"
    if not why and "worker_queued" not in seen:
        why = "it was not seen how long the workers wait for a core"
    if why:
        return Item("cores", title, UNMEASURABLE, why)
    queued = seen["worker_queued"]
    told = f"{running}; a worker waits for a core {percent(queued)} of its time"
    advice = check.advice(_CORES)
    if advice:
        return Item("cores", title, FAILED, told, advice)
    starved = check.diagnosis.verdict.starved
    costs = starved is None or starved.high > GATE  # a loop that does not starve needs no fix
    if costs and running.exceed and queued > QUEUED:
        return Item("cores", title, FAILED, told, [], ["less for the workers to do, or more cores for each device"])
    return Item("cores", title, PASSED, told)


def knobs(check: Check) -> Item:
    """Check the loader's settings against the gain of other settings."""
    title = "no other setting of the loader would gain much"
    loader = check.loader
    if what_if(check.ladder) is None:
        return Item("knobs", title, UNMEASURABLE, check.lacking("baseline", "device") or OPEN)
    names = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
    told = ", ".join(f"{name}={getattr(loader, name)}" for name in names)
    measured = sum(arm.speedup is not None for arm in arms(check.session))
    if measured:
        told += f"; {counted(measured, 'other setting')} measured beside it"
    advice = check.advice(KNOBS)
    return Item("knobs", title, FAILED if advice else PASSED, told, advice)
