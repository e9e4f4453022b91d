"""Audit a script's input pipeline: a checklist of items that pass, fail, stay open, or do not apply.

An item fails if the run's own numbers show that mending it gains enough, not if it breaks a rule of thumb: a copy that
the loop waits for passes if it costs nothing. The run's recommendations say what to do about failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..session import FEWER_THREADS, Loader, Session, SyncCall, fed_apart, ordered
from .amortised import startup_ms
from .diagnosis import Diagnosis, Recommendation
from .numbers.cores import threads
from .numbers.intervals import Interval, exceeds
from .numbers.ladder import LadderView
from .numbers.loop_and_workers import OF_THE_WORKERS
from .recommend import tried
from .recommend.view import batch_text, bytes_text
from .thresholds import GATE, QUEUED
from .trials.halving import arms
from .verdict import measured_share
from .whatif import Change, what_if
from .words import counted, number, percent, percent_of, times

#: Results of a check, in the order in which a reader needs them.
STATUSES = FAILED, OPEN, NOT_MEASURED, PASSED, DOES_NOT_APPLY = (
    "failed", "open", "not measured", "passed", "does not apply"
)  # fmt: skip
#: Why an item is open if an interval contains the bound.
_TOO_WIDE = "too uncertain to tell; a longer budget narrows the interval"
#: Largest number of recommendations in one item; the report has them all.
_NAMED = 3
#: Ids of the recommendations that change only the loader's settings.
KNOBS = frozenset({*tried.IDS, "persistent-workers", "one-iterator"})
_CORES = frozenset({"threads", "fewer-workers", "more-cores"})
_COPYING = frozenset({"overlap-copies", "pin-memory"})
_LIGHTER = frozenset({"uint8", "pack", "low-precision"})
#: Minimum number of windows per rung.
_ENOUGH = 2


class Unanswered(Exception):
    """A check neither passes nor fails; the message says why."""

    status = ""


class Undecided(Unanswered):
    """The item was measured, but its numbers leave the answer open."""

    status = OPEN

    def __init__(self, figures: str) -> None:
        super().__init__(f"{figures}; {_TOO_WIDE}")


class NotMeasured(Unanswered):
    """A measurement is missing: time ran out, or it could not be made."""

    status = NOT_MEASURED


class DoesNotApply(Unanswered):
    """This script has nothing that the item could be about."""

    status = DOES_NOT_APPLY


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        status: one of :data:`STATUSES`.
        figures: the numbers, or why there are none.
        advice: the run's recommendations that would fix it.
        todo: other remedies.
    """

    status: str
    figures: str
    advice: list[Recommendation] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Item(Result):
    """A result with its ``id``, the same in every audit, and its ``title``: the condition that holds if it passes."""

    id: str
    title: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "status": self.status,
            "told": self.figures,
            "recommendations": [one.id for one in self.advice],
            "todo": self.todo,
        }


@dataclass(frozen=True)
class Check:
    """The audited run; ``gate`` is the share of a step that its input pipeline may cost."""

    diagnosis: Diagnosis
    gate: float

    @property
    def session(self) -> Session:
        return self.diagnosis.session

    @property
    def ladder(self) -> LadderView:
        return self.diagnosis.ladder

    @property
    def loader(self) -> Loader:
        return self.session.loader or Loader()

    @property
    def device(self) -> str:
        return self.session.device_type

    @property
    def bound(self) -> float:
        """Share of a step that a single cost may take: no change is worth it for less."""
        return least_worth(self.gate)

    @property
    def input_is_cheap(self) -> bool:
        """True if all input together certainly costs less than :attr:`bound`, so that no part of it costs more."""
        starved = self.diagnosis.verdict.starved
        return starved is not None and starved.high <= self.bound

    def judged(self, figures: str, ids: Collection[str]) -> Result:
        """Return the result of a check that fails if one of these recommendations certainly gains :attr:`bound`.

        Smaller gains are among the figures.

        Raises:
            Undecided: one of them probably gains enough, but that is not certain.
        """
        found, least = self.advice(ids), 1 / (1 - self.bound)
        enough = [one for one in found if one.gain is not None and one.gain.value >= least]
        if certain := [one for one in enough if one.gain is not None and one.gain.low >= least]:
            return Result(FAILED, figures, certain[:_NAMED])
        if enough:
            raise Undecided(f"{figures}; {_gain(enough[0])}")
        return Result(PASSED, "; ".join([figures, *map(_gain, found)]))

    def advice(self, ids: Collection[str]) -> list[Recommendation]:
        """Return the run's recommendations with one of these ids."""
        return [one for one in self.diagnosis.recommendations if one.id in ids]

    def needs(self, *rungs: str) -> None:
        """Raise :class:`Unanswered` unless these rungs were measured."""
        for rung in rungs:
            if not self.ladder.has(rung):
                found = self.session.rungs.get(rung)
                if found is not None and not found.exists:
                    raise DoesNotApply(found.why_not)
                why = found.why_not if found is not None else ""
                raise NotMeasured(f"{rung} was not measured: {why or 'not reached; give a longer budget'}")

    def needs_a_device(self) -> None:
        """Raise :class:`DoesNotApply` if training runs on the CPU."""
        if self.device == "cpu":
            raise DoesNotApply("training runs on the CPU: there is no transfer")

    def needs_workers(self) -> None:
        """Raise :class:`DoesNotApply` if the training process makes the batches itself."""
        if not self.loader.num_workers:
            raise DoesNotApply("num_workers=0: the training process makes the batches between its steps")


def _gain(one: Recommendation) -> str:
    """Return a recommendation with its gain."""
    if one.gain is None:
        return one.title
    return f"{one.title}: {times(one.gain)} {'measured' if one.measured else 'predicted'}"


def least_worth(gate: float) -> float:
    """Return the share of a step below which nothing is worth a change, if input may cost ``gate`` of it."""
    return max(gate, GATE)


def at_most(interval: Interval, bound: float, figures: str, advice: list[Recommendation], otherwise: str) -> Result:
    """Return the result for a cost that must not exceed a bound; ``advice`` and ``otherwise`` are for :func:`failed`.

    Raises:
        Undecided: its interval contains the bound.
    """
    exceeded = exceeds(interval, bound)
    if exceeded is None:
        raise Undecided(figures)
    return failed(figures, advice, otherwise) if exceeded else Result(PASSED, figures)


def failed(figures: str, advice: list[Recommendation], otherwise: str) -> Result:
    """Return a failed result with the first of the recommendations, or if there are none, with another remedy."""
    return Result(FAILED, figures, advice[:_NAMED], [] if advice else [otherwise])


def copying_share(ladder: LadderView) -> Interval:
    """Return the cost of copying batches to the device, as a share of the baseline step."""
    return ladder.cost("host", "device").times(1 / ladder.ms("baseline").value)


def margin(ladder: LadderView) -> Interval:
    """Return the batch rate of the loader alone, divided by that of the loop with batches ready."""
    return ladder.ratio(ladder.ceiling, "supply")


def _starvation(check: Check) -> Result:
    """Check the input pipeline's cost per step against the gate."""
    ladder, starved = check.ladder, check.diagnosis.verdict.starved
    if starved is None:
        raise NotMeasured(check.diagnosis.verdict.sentence)
    base, best = number(ladder.ms("baseline").value), number(ladder.best.value)
    figures = f"{percent_of('', starved)}: {base} ms with the loader, {best} with cached batches"
    advice = [one for one in check.diagnosis.recommendations if one.stage != "compute"]
    return at_most(starved, check.gate, figures, advice, check.diagnosis.nothing_to_gain)


def _supply(check: Check) -> Result:
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


def _startup(check: Check) -> Result:
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


def _cores(check: Check) -> Result:
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


def _knobs(check: Check) -> Result:
    """Check the loader's settings against the gain of other settings."""
    if what_if(check.ladder) is None:
        check.needs("baseline", "device")
    names = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
    figures = ", ".join(f"{name}={getattr(check.loader, name)}" for name in names)
    measured = sum(arm.speedup is not None for arm in arms(check.session))
    if measured:
        figures += f"; {counted(measured, 'other setting')} measured"
    return check.judged(figures, KNOBS)


def _transfer(check: Check) -> Result:
    """Check what copying costs the loop, and report whether it is pinned and asynchronous.

    Copies that the loop makes while it waits for the loader anyway pass: without them it would be no faster.
    """
    check.needs_a_device()
    check.needs("baseline", "device", "host")
    share, base = copying_share(check.ladder), check.ladder.ms("baseline").value
    figures = f"{percent_of('', share)} of {number(base)} ms; {_how(check)}"
    if check.input_is_cheap:
        return Result(PASSED, figures)
    model = what_if(check.ladder)
    if model is not None and share.low > check.bound:
        gain = model.faster(Change(loop=share.times(model.base)))
        if gain.high < 1 / (1 - check.bound):
            return Result(PASSED, f"{figures}; without them the loop would be {number(gain.value)}x as fast")
    otherwise = "load the next batch to the device while a step runs"
    return at_most(share, check.bound, figures, check.advice(_COPYING), otherwise)


def _how(check: Check) -> str:
    """Return how the loop copies, as a clause."""
    batch = check.session.batch
    if batch is None or batch.unwatched or all(leaf.copied is None for leaf in batch.leaves):
        why = batch.unwatched if batch is not None else ""
        return f"how the loop copies was not observed{f': {why}' if why else ''}"
    copied = [leaf for leaf in batch.leaves if leaf.copied]
    waited = [leaf for leaf in copied if not leaf.non_blocking]
    if not copied:
        return "no tensor of a batch was copied unchanged"
    if not waited:
        return "from pinned memory, without waiting"
    return f"the loop waits for the copy of {batch_text(waited)}"


def _syncs(check: Check) -> Result:
    """Check for calls that wait for the device in every step.

    Without them a step becomes shorter by at most the time spent in them, and by the time in which the device idles.
    """
    found = check.session.syncs
    if check.device == "cpu":
        raise DoesNotApply("training runs on the CPU: there is no device to wait for")
    if found is None:
        check.needs("host")
        raise NotMeasured("time ran out before steps were watched")
    if found.unwatched:
        raise NotMeasured(found.unwatched)
    seen = f"{found.steps} steps watched"
    if not found.calls:
        return Result(PASSED, f"none in {seen}")
    figures, todo = f"{counted(len(found.calls), 'call')} of the loop; {seen}", list(map(_call, found.calls))
    known = [call.ms_per_step for call in found.calls if call.ms_per_step is not None]
    step = check.ladder.ms("baseline").value if check.ladder.has("baseline") else None
    if step is not None and len(known) == len(found.calls) and sum(known) <= check.bound * step:
        return Result(PASSED, f"{figures}; they take {number(sum(known))} of {number(step)} ms")
    busy = check.ladder.evidence("device").get("gpu_utilization", 0.0)
    if busy >= 1 - check.bound:
        return Result(PASSED, f"{figures}; fed from a cache the device works {percent(busy)} of the time")
    if len(known) < len(found.calls) and sum(known) <= check.bound * (step or 0.0):
        return Result(OPEN, f"{figures}; how long they take is not known", [], todo)
    return Result(FAILED, figures, [], todo)


def _call(call: SyncCall) -> str:
    often = "once a step" if call.per_step == 1 else f"{number(call.per_step)} times a step"
    took = f", {number(call.ms_per_step)} ms" if call.ms_per_step is not None else ""
    return f"{call.call} at {call.where} ({often}{took}): {call.help}"


def _light(check: Check) -> Result:
    """Check whether copying fewer bytes per batch would gain anything."""
    check.needs_a_device()
    leaves = check.session.batch.leaves if check.session.batch is not None else []
    if not leaves:
        raise NotMeasured("the contents of a batch were not inspected")
    if what_if(check.ladder) is None:
        check.needs("baseline", "device")
    figures = f"a batch has {bytes_text(sum(leaf.nbytes for leaf in leaves))} in {counted(len(leaves), 'tensor')}"
    found = check.judged(figures, _LIGHTER)
    if found.status == FAILED:
        return replace(found, figures=f"{figures}; {'; '.join(one.evidence[0] for one in found.advice)}")
    return replace(found, figures=f"{found.figures}; fewer would gain less than {percent(check.bound)} of a step")


def _unread(check: Check) -> Result:
    """Check for tensors that are copied to the device but not read there."""
    check.needs_a_device()
    batch = check.session.batch
    if batch is not None and batch.unwatched:
        raise NotMeasured(batch.unwatched)
    leaves = batch.leaves if batch is not None else []
    copied = [leaf for leaf in leaves if leaf.copied]
    known = [leaf for leaf in copied if leaf.read is not None]
    if leaves and all(leaf.copied is False for leaf in leaves):
        raise DoesNotApply("no tensor of a batch is copied to the device unchanged")
    if not known:
        raise NotMeasured("no watched step showed whether the tensors are read")
    read = [leaf for leaf in known if leaf.read]
    figures = f"{len(read)} of {len(copied)} copied tensors were seen to be read"
    found = check.judged(figures, {"unread"})
    if found.status == FAILED:
        return replace(found, figures=found.advice[0].evidence[0])
    idle = [leaf for leaf in known if not leaf.read]
    if not idle:
        return found
    little = f"leaving {batch_text(idle)} on the host would gain less than {percent(check.bound)} of a step"
    return replace(found, figures=f"{figures}; {little}")


def next_round(session: Session, gate: float) -> list[str]:
    """Return the rungs that need another window each; empty if every item is decided or never will be.

    Every rung gets a few windows, controls included. Then the whole pipeline's cost is compared with ``gate``, a share
    of the step, and copying and the loader alone with :func:`least_worth`. The transform chain is not cut.
    """
    ladder = LadderView(session)
    refused = {rung.name for rung in session.rungs.values() if not rung.available}
    rungs = {name for name in session.rungs if not fed_apart(name)} - {FEWER_THREADS}
    wanted = {name for name in rungs if ladder.windows(name) < _ENOUGH}
    if "baseline" in ladder.rungs and len(ladder.rungs) > 1:
        for pair, interval, bound in _compared(ladder, gate):
            if not pair & refused and exceeds(interval, bound) is None:
                wanted |= pair
    return ordered(wanted - refused)


def _compared(ladder: LadderView, gate: float) -> Iterator[tuple[set[str], Interval, float]]:
    """Yield pairs of rungs, the interval that they give, and the bound that it is compared with."""
    top, bound = ladder.rungs[0], least_worth(gate)
    starved = measured_share(ladder)
    if starved is not None:
        yield {"baseline", top}, starved, gate
    if {"device", "host"} <= {*ladder.rungs}:
        yield {"device", "host"}, copying_share(ladder), bound
    if ladder.has("supply") and ladder.has("worker"):
        yield {"supply", top}, margin(ladder).inverse(), 1 / (1 - bound)


#: Each check's id and title, and the function that makes it. Functions raise :class:`Unanswered`.
CHECKS: tuple[tuple[str, str, Callable[[Check], Result]], ...] = (
    ("starvation", "data costs at most {gate} of a step", _starvation),
    ("supply", "the loader alone is faster than the training", _supply),
    ("startup", "epochs begin without a long wait", _startup),
    ("cores", "workers and threads have the cores they need", _cores),
    ("knobs", "no other setting of the loader would gain much", _knobs),
    ("transfer", "copies to the device cost at most {bound} of a step", _transfer),
    ("syncs", "no call waits for the device in every step", _syncs),
    ("bytes", "batches carry few redundant bytes to the device", _light),
    ("unread", "what is copied to the device is read there", _unread),
)


@dataclass(frozen=True)
class Audit:
    """The result of :func:`audit`; ``gate`` is the share of a step that the input pipeline may cost."""

    diagnosis: Diagnosis
    gate: float
    items: list[Item]

    @property
    def failed(self) -> list[Item]:
        """The items that fail; the audit fails if there are any."""
        return [item for item in self.items if item.status == FAILED]

    @property
    def conclusive(self) -> bool:
        """True if the audit failed, or passed: it is known whether input costs more than the gate."""
        return bool(self.failed) or any(item.id == "starvation" and item.status == PASSED for item in self.items)

    def count(self, status: str) -> int:
        """Return how many items have this status."""
        return sum(item.status == status for item in self.items)

    def to_dict(self) -> dict[str, Any]:
        """Return the published form: that of the diagnosis, with ``audit`` added."""
        checklist = {"gate": self.gate, "items": [item.to_dict() for item in self.items]}
        return {**self.diagnosis.to_dict(), "audit": checklist}


def audit(diagnosis: Diagnosis, gate: float = GATE) -> Audit:
    """Run the checklist on the numbers of one run."""
    check = Check(diagnosis, gate)
    items = []
    for id, title, made in CHECKS:
        try:
            result = made(check)
        except Unanswered as why:
            result = Result(why.status, str(why))
        items.append(Item(**vars(result), id=id, title=title.format(gate=percent(gate), bound=percent(check.bound))))
    return Audit(diagnosis, gate, items)
