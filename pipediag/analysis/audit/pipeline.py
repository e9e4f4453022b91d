"""Check the loader: whether the loop waits for it, and its settings."""

from __future__ import annotations

import math

from ..forecast.whatif import what_if
from ..numbers.cores import threads
from ..numbers.sides import OF_THE_WORKERS
from ..recommend import tried
from ..sentences import counted, fed, number, percent, percent_of, times
from ..startup import startup_ms
from ..thresholds import QUEUED
from ..trials.halving import arms
from .item import PASSED, Check, NotMeasured, Result, Undecided, at_most, failed, margin

#: Ids of the recommendations that change only the loader's settings.
KNOBS = frozenset({*tried.IDS, "persistent-workers", "one-iterator"})
_CORES = frozenset({"threads", "fewer-workers", "more-cores"})


def starvation(check: Check) -> Result:
    """Check the input pipeline's cost per step against the gate."""
    ladder, starved = check.ladder, check.diagnosis.verdict.starved
    if starved is None:
        raise NotMeasured(check.diagnosis.verdict.sentence)
    base, best = number(ladder.ms("baseline").value), number(ladder.best.value)
    figures = f"{percent_of('', starved)}: {base} ms with the loader, {best} {fed(ladder)}"
    advice = [one for one in check.diagnosis.recommendations if one.stage != "compute"]
    return at_most(starved, check.gate, figures, advice, check.diagnosis.nothing_to_gain)


def supply(check: Check) -> Result:
    """Check the rate of the loader alone against the rate of training with batches ready."""
    ladder = check.ladder
    check.needs_workers()
    check.needs("baseline", "supply")
    if len(ladder.rungs) < 2:
        check.needs("device")
    rate = margin(ladder)
    makes, takes = (number(1000.0 / ladder.ms(rung).value) for rung in ("supply", ladder.ceiling))
    figures = f"the loader supplies {times(rate)} what training consumes: {makes} against {takes} batches/s"
    if check.input_is_cheap:
        return Result(PASSED, figures)
    advice = [one for one in check.diagnosis.recommendations if one.stage in OF_THE_WORKERS]
    return at_most(rate.inverse(), 1 / (1 - check.bound), figures, advice, "see the first item: the input's cost")


def startup(check: Check) -> Result:
    """Check the cost of an epoch's start, spread over its steps."""
    loader, paid = check.loader, check.session.startups
    each = startup_ms(check.ladder)
    check.needs_workers()
    check.needs("baseline")
    if not loader.epoch:
        raise NotMeasured("the loader has no length: its startup cannot be spread over an epoch")
    if each is None:
        kept = loader.persistent_workers and bool(paid)
        raise NotMeasured(
            "the workers persist, and the script began no second epoch" if kept else "the script began no epoch"
        )
    share = each.beside(check.ladder.ms("baseline").value)
    figures = f"an epoch's start takes {number(each.value * loader.epoch / 1000)} s, {number(each.value)} ms a step "
    figures += f"over an epoch of {loader.epoch} batches: {percent_of('the time', share)}"
    advice = check.advice({"persistent-workers", "one-iterator"})
    return at_most(share, check.bound, figures, advice, "longer epochs, or a cheaper first batch")


def cores(check: Check) -> Result:
    """Check workers and threads against the cores that they may use."""
    running = threads(check.session)
    check.needs_workers()
    check.needs("baseline")
    queued = check.ladder.evidence("baseline").get("worker_queued")
    if math.isinf(running.cores):
        raise NotMeasured("the number of usable cores is not known")
    if queued is None:
        raise NotMeasured("how long the workers wait for a core was not measured")
    figures = f"{running}; a worker waits for a core {percent(queued)} of its time"
    if check.input_is_cheap:  # a loop that does not starve needs no fix
        return Result(PASSED, figures)
    if not running.exceed or queued <= QUEUED:
        return check.judged(figures, _CORES)
    starved = check.diagnosis.verdict.starved
    if starved is None or starved.low <= check.bound:
        raise Undecided(figures)
    return failed(figures, check.advice(_CORES), "give the workers less to do, or each device more cores")


def knobs(check: Check) -> Result:
    """Check the loader's settings against the gain of other settings."""
    if what_if(check.ladder) is None:
        check.needs("baseline", "device")
    names = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
    figures = ", ".join(f"{name}={getattr(check.loader, name)}" for name in names)
    measured = sum(arm.speedup is not None for arm in arms(check.session))
    if measured:
        figures += f"; {counted(measured, 'other setting')} measured"
    return check.judged(figures, KNOBS)
