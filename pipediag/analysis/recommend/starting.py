"""Rules for workers that are started again and again: those of the training loader, and those of other loaders."""

from __future__ import annotations

from ..diagnosis import Recommendation
from ..numbers.intervals import Interval
from ..other_loaders import OtherLoader, other_loaders
from ..sentences import counted, number
from ..startup import epoch_start, startup_ms
from .view import View, at_line

_TIMED = "computed from these times, not tried: no steady window includes the time between {}"


def one_iterator(view: View) -> Recommendation | None:
    """Recommend one iterator for many batches, if the loop makes a new one for every batch."""
    loader, base = view.loader, view.whatif.base
    start, each = epoch_start(view.ladder), startup_ms(view.ladder)
    if loader.left_after != 1 or start is None or each is None or not start.starts:
        return None
    where = f" at {loader.where}" if loader.where else ""
    return view.made(
        "one-iterator",
        "Take batches from one iterator",
        "startup",
        _gain(base, each, 0.0),
        [
            f"the loop makes a new iterator for every batch: {number(each.value)} ms until it gives the first one, in "
            f"addition to {number(base)} ms for the step itself",
            _TIMED.format("iterators"),
        ],
        f"batches = iter(loader) before the loop and next(batches) in it, in place of next(iter(loader)){where}",
        "each batch then comes from the rest of the epoch, not from all samples; StopIteration begins the next epoch",
        startup_ms=each.value,
    )


def cheaper_sampler(view: View) -> Recommendation | None:
    """Recommend a sampler that begins faster, if most of an epoch's start is its choice of the first batches."""
    start, each, place = epoch_start(view.ladder), startup_ms(view.ladder), view.loader.sampler
    if start is None or each is None or place is None or not start.starts or not start.by_sampler:
        return None
    one = start.usual
    return view.made(
        "sampler-start",
        f"Let {place.name} begin faster",
        "startup",
        _gain(view.whatif.base, each, each.value * (1 - one.sampler / one.seconds)),
        [
            f"an epoch begins with {number(one.seconds)} s until the first batch, of which the sampler takes "
            f"{number(one.sampler)} s to choose the first batches",
            _TIMED.format("epochs"),
        ],
        f"{at_line(place)}the order of all samples made with whole arrays, or once for all epochs; no worker runs the "
        "sampler",
        "another way of choosing may give other batches",
        startup_ms=each.value,
        at_most=True,
    )


def persistent_workers(view: View) -> Recommendation | None:
    """Recommend keeping the workers between epochs, if more than the first launch of a process was seen."""
    loader, base = view.loader, view.whatif.base
    start, each = epoch_start(view.ladder), startup_ms(view.ladder)
    if (
        loader.persistent_workers
        or loader.left_after == 1
        or start is None
        or not start.launching
        or each is None
        or not start.starts
    ):
        return None
    one = start.usual
    evidence = [
        f"every epoch of {counted(loader.epoch or 0, 'batch', 'batches')} begins with {number(one.seconds)} s until "
        f"the first batch: {number(each.value)} ms per step, in addition to {number(base)} ms for the step itself",
        f"the workers take {number(one.ready)} s of that to get ready",
    ]
    if start.shutdown:
        evidence.append(f"ending the previous epoch's workers takes another {number(start.shutdown)} s")
    evidence.append(f"timed in {counted(start.starts, 'start')} after the first of the process")
    evidence.append(_TIMED.format("epochs"))
    return view.made(
        "persistent-workers",
        "Keep the workers from epoch to epoch",
        "startup",
        # Workers that are kept still make a first batch, unless it is ready before it is asked for.
        _gain(base, each, each.value * (1 - start.launching / start.seconds.value)),
        evidence,
        f"persistent_workers=True {view.in_the_loader}",
        "changes to the dataset object between epochs no longer reach the workers, which keep their memory",
        startup_ms=each.value,
    )


def starting_others(view: View) -> Recommendation | None:
    """Recommend keeping the workers of the other loader that costs the loop most, or else using it less often."""
    found = sorted(other_loaders(view.ladder), key=lambda one: one.per_step.value)
    if not found or found[-1].per_step.value <= 0:
        return None
    one, base = found[-1], view.whatif.base + found[-1].hidden
    cost, left = one.per_step, max(0.0, one.spent.value * (1 - one.kept / one.seconds.value) - one.hidden)
    evidence = [
        f"every {counted(one.every, 'step')} the loop waits {number(one.seconds.value)} s for the loader at "
        f"{one.where}: {number(cost.value)} ms per step, in addition to {number(base)} ms for the step itself"
    ]
    if one.kept and not one.persistent:
        title = "Keep the workers of the other loader"
        how = f"persistent_workers=True in the DataLoader that is iterated at {one.where}"
        evidence.append(f"launching its workers and ending them takes {number(one.kept)} s of that")
    else:
        title, left = "Use the other loader half as often", max(0.0, one.spent.value / 2 - one.hidden)
        how = f"use the loader that is iterated at {one.where} less often, or with fewer batches"
    risk = _risk(one)
    return view.made(
        "other-loaders", title, "startup", _gain(base, cost, left), [*evidence, _TIMED.format("steps")], how, risk
    )


def _risk(one: OtherLoader) -> str:
    if one.kept and not one.persistent:
        return "its workers stay in memory beside those of the training loader"
    return "what it is used for, such as a validation, is known less often"


def _gain(base: float, cost: Interval, left: float) -> Interval:
    """Return the speedup if ``left`` milliseconds a step remain of a cost beside the step; at best, none remain."""
    remains = left / cost.value
    value, low = ((base + ms) / (base + ms * remains) for ms in (cost.value, cost.low))
    return Interval(value, low, (base + cost.high) / base)
