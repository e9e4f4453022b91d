"""Check the loader: whether the loop waits for it, and its settings."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from ..cores import threads
from ..halving import arms
from ..recommend import tried
from ..sentences import counted, number, percent, span, times
from ..thresholds import GATE, QUEUED
from ..verdict import startup_ms
from ..waterfall import OF_THE_WORKERS
from ..whatif import what_if
from .item import FAILED, OPEN, PASSED, Check, Result, Unmeasurable, at_most, margin

#: Ids of the recommendations that change only the loader's settings.
KNOBS = frozenset({*tried.IDS, "persistent-workers"})
_CORES = frozenset({"threads", "fewer-workers", "more-cores"})
#: Maximum number of recommendations that one item names; the report has them all.
_NAMED = 3


def starvation(check: Check) -> Result:
    """Check the input pipeline's cost per step against the gate."""
    ladder, starved = check.ladder, check.diagnosis.verdict.starved
    if starved is None:
        raise Unmeasurable(check.diagnosis.verdict.sentence)
    base, best = number(ladder.ms("baseline").value), number(ladder.free_ms)
    share = f"{percent(max(0.0, starved.value))} ({span(starved)})"
    found = at_most(starved, check.gate, f"{share}: {base} ms with the loader, {best} with cached batches")
    if found.status == PASSED:
        return found
    advice = [one for one in check.diagnosis.recommendations if one.stage != "compute"]
    return replace(found, advice=advice[:_NAMED], todo=[] if advice else [check.diagnosis.nothing_to_gain])


def supply(check: Check) -> Result:
    """Check the rate of the loader alone against the rate of training with batches ready."""
    ladder = check.ladder
    check.needs("baseline", "supply")
    if not check.loader.num_workers:
        raise Unmeasurable("num_workers=0: the training process makes the batches between its steps")
    if len(ladder.rungs) < 2:
        check.needs("device")
    rate = margin(ladder)
    makes, takes = (number(1000.0 / ladder.ms(rung).value) for rung in ("supply", ladder.ceiling))
    figures = f"the loader supplies {times(rate)} what training consumes: {makes} against {takes} batches/s"
    found = at_most(rate.inverse(), 1.0, figures)
    if found.status == PASSED:
        return found
    advice = [one for one in check.diagnosis.recommendations if one.stage in OF_THE_WORKERS]
    return replace(found, advice=advice[:_NAMED], todo=[] if advice else ["see the first item: the input's cost"])


def startup(check: Check) -> Result:
    """Check the cost of an epoch's start, spread over its steps."""
    loader, paid = check.loader, check.session.startups
    each = startup_ms(check.session)
    check.needs("baseline")
    if not loader.length:
        raise Unmeasurable("the loader has no length: its startup cannot be spread over an epoch")
    if each is None:
        kept = loader.persistent_workers and bool(paid)
        raise Unmeasurable(
            "the workers persist, and the script began no second epoch" if kept else "the script began no epoch"
        )
    share = each / (check.ladder.ms("baseline").value + each)
    seconds = statistics.median(one.seconds for one in paid if one.renewed or not loader.persistent_workers)
    figures = f"{number(seconds)} s from iter() to the first batch, {number(each)} ms a step over an epoch of "
    figures += f"{loader.length} batches: {percent(share)} of the time"
    if share <= GATE:
        return Result(PASSED, figures)
    advice = check.advice({"persistent-workers"})
    return Result(FAILED, figures, advice, [] if advice else ["longer epochs, or a cheaper first batch"])


def cores(check: Check) -> Result:
    """Check workers and threads against the cores that they may use."""
    running = threads(check.session)
    check.needs("baseline")
    queued = check.ladder.evidence("baseline").get("worker_queued")
    if not running.workers:
        raise Unmeasurable("num_workers=0: there are no workers")
    if math.isinf(running.cores):
        raise Unmeasurable("the number of usable cores is not known")
    if queued is None:
        raise Unmeasurable("how long the workers wait for a core was not measured")
    figures = f"{running}; a worker waits for a core {percent(queued)} of its time"
    advice = check.advice(_CORES)
    if advice:
        return Result(FAILED, figures, advice)
    starved = check.diagnosis.verdict.starved
    costs = starved is None or starved.high > GATE  # a loop that does not starve needs no fix
    if costs and running.exceed and queued > QUEUED:
        return Result(FAILED, figures, [], ["give the workers less to do, or each device more cores"])
    return Result(PASSED, figures)


def knobs(check: Check) -> Result:
    """Check the loader's settings against the gain of other settings."""
    if what_if(check.ladder) is None:
        raise Unmeasurable(check.lacking("baseline", "device") or OPEN)
    names = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
    figures = ", ".join(f"{name}={getattr(check.loader, name)}" for name in names)
    measured = sum(arm.speedup is not None for arm in arms(check.session))
    if measured:
        figures += f"; {counted(measured, 'other setting')} measured"
    advice = check.advice(KNOBS)
    return Result(FAILED if advice else PASSED, figures, advice)
