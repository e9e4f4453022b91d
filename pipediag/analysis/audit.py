"""Audit a script's input pipeline: a checklist of items that pass, fail, stay open, or do not apply.

An item fails if the run's own numbers show that mending it gains enough, not if it breaks a rule of thumb: a copy that
the loop waits for passes if it costs nothing. The run's recommendations say what to do about failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..session import FEWER_THREADS, LONGER, Loader, Session, fed_apart, ordered
from .amortised import epoch_start
from .diagnosis import Diagnosis, Recommendation
from .numbers.foreign_load import others, worth_telling
from .numbers.intervals import Interval, exceeds
from .numbers.ladder import LadderView
from .numbers.loop_and_workers import OF_THE_WORKERS
from .recommend import considered, tried
from .recommend.view import batch_text, bytes_text
from .thresholds import GATE, QUEUED
from .trials.halving import arms
from .trials.threads import wanting_to_run
from .verdict import measured_share
from .whatif import Change, what_if
from .words import counted, number, percent, percent_of, times

#: Results of a check, in the order in which a reader needs them.
STATUSES = FAILED, OPEN, NOT_MEASURED, PASSED, DOES_NOT_APPLY = (
    "failed", "open", "not measured", "passed", "does not apply"
)  # fmt: skip
#: Largest number of recommendations in one item; the report has them all.
_NAMED = 3
#: Ids of the recommendations that change only the loader's settings.
KNOBS = frozenset({*tried.IDS, "persistent-workers", "one-iterator"})
_CORES = frozenset({"threads", "fewer-workers", "more-cores"})
_COPYING = frozenset({"overlap-copies", "pin-memory"})
_LIGHTER = frozenset({"uint8", "pack", "low-precision"})
#: Minimum number of windows per rung.
_ENOUGH = 2


@dataclass(frozen=True)
class Item:
    """One check and its result."""

    status: str  # one of :data:`STATUSES`
    figures: str  # the numbers, or why there are none
    advice: list[Recommendation] = field(default_factory=list)  # the run's recommendations that would fix it
    todo: list[str] = field(default_factory=list)  # other remedies
    id: str = ""  # the same in every audit; :func:`audit` sets it, and the title
    title: str = ""  # the condition that holds if it passes

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "status": self.status,
            "told": self.figures,
            "recommendations": [one.id for one in self.advice],
            "todo": self.todo,
        }


class Unanswered(Exception):
    """A check neither passes nor fails: its ``status``, and as the message, why."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


def undecided(figures: str) -> Unanswered:
    """Return what a check raises whose numbers leave the answer open."""
    return Unanswered(OPEN, f"{figures}; too uncertain to tell; a longer budget narrows the interval")


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
    def bound(self) -> float:
        """Share of a step that a single cost may take: no change is worth it for less."""
        return least_worth(self.gate)

    @property
    def input_is_cheap(self) -> bool:
        """True if all input together certainly costs less than :attr:`bound`, so that no part of it costs more."""
        starved = self.diagnosis.verdict.starved
        return starved is not None and starved.high <= self.bound

    @cached_property
    def predictions(self) -> list[Recommendation]:
        """What every rule predicts, also of changes that are not recommended because their gain may be none."""
        return considered(self.ladder, self.diagnosis.waterfall, self.diagnosis.verdict)

    def judged(self, figures: str, ids: Collection[str]) -> Item:
        """Return the result of a check that fails if one of these recommendations certainly gains :attr:`bound`.

        Smaller gains are among the figures. It is open if a change probably gains enough, but not certainly.
        """
        found, least = [one for one in self.predictions if one.id in ids], 1 / (1 - self.bound)
        enough = [one for one in found if one.gain is not None and one.gain.value >= least]
        if certain := [one for one in self.advice(ids) if one.gain is not None and one.gain.low >= least]:
            return Item(FAILED, figures, certain[:_NAMED])
        if enough:
            raise undecided(f"{figures}; {_gain(enough[0])}")
        return Item(PASSED, "; ".join([figures, *map(_gain, self.advice(ids))]))

    def advice(self, ids: Collection[str]) -> list[Recommendation]:
        return [one for one in self.diagnosis.recommendations if one.id in ids]

    def needs(self, *rungs: str) -> None:
        """Raise :class:`Unanswered` unless these rungs were measured."""
        for rung in rungs:
            if not self.ladder.has(rung):
                found = self.session.rungs.get(rung)
                if found is not None and not found.exists:
                    raise Unanswered(DOES_NOT_APPLY, found.why_not)
                why = (found.why_not if found is not None else "") or "not reached; give a longer budget"
                raise Unanswered(NOT_MEASURED, f"{rung} was not measured: {why}")

    def needs_a_device(self, so: str = "there is no transfer") -> None:
        """Raise :class:`Unanswered` if training runs on the CPU."""
        if self.session.device_type == "cpu":
            raise Unanswered(DOES_NOT_APPLY, f"training runs on the CPU: {so}")

    def needs_workers(self) -> None:
        """Raise :class:`Unanswered` if the training process makes the batches itself."""
        if not self.loader.num_workers:
            why = "num_workers=0: the training process makes the batches between its steps"
            raise Unanswered(DOES_NOT_APPLY, why)


def _gain(one: Recommendation) -> str:
    if one.gain is None:
        return one.title
    return f"{one.title}: {times(one.gain)} {'measured' if one.measured else 'predicted'}"


def least_worth(gate: float) -> float:
    """Return the share of a step below which nothing is worth a change, if input may cost ``gate`` of it."""
    return max(gate, GATE)


def at_most(interval: Interval, bound: float, figures: str, advice: list[Recommendation], otherwise: str) -> Item:
    """Return the result for a cost that must not exceed a bound; ``advice`` and ``otherwise`` are for :func:`failed`.

    It is open if the interval contains the bound.
    """
    exceeded = exceeds(interval, bound)
    if exceeded is None:
        raise undecided(figures)
    return failed(figures, advice, otherwise) if exceeded else Item(PASSED, figures)


def failed(figures: str, advice: list[Recommendation], otherwise: str) -> Item:
    """Return a failed item with the first of the recommendations, or if there are none, with another remedy."""
    return Item(FAILED, figures, advice[:_NAMED], [] if advice else [otherwise])


def copying_share(ladder: LadderView) -> Interval:
    """Return the cost of copying batches to the device, as a share of the baseline step."""
    return ladder.cost("host", "device").times(1 / ladder.ms("baseline").value)


def margin(ladder: LadderView) -> Interval:
    """Return the batch rate of the loader alone, divided by that of the loop with batches ready."""
    return ladder.ratio(ladder.ceiling, "supply")


def _starvation(check: Check) -> Item:
    """Check the input pipeline's cost per step against the gate."""
    ladder, starved = check.ladder, check.diagnosis.verdict.starved
    if starved is None:
        raise Unanswered(NOT_MEASURED, check.diagnosis.verdict.sentence)
    base, best = number(ladder.ms("baseline").value), number(ladder.best.value)
    figures = f"{percent_of('', starved)}: {base} ms with the loader, {best} with cached batches"
    advice = [one for one in check.diagnosis.recommendations if one.stage != "compute"]
    return at_most(starved, check.gate, figures, advice, check.diagnosis.nothing_to_gain)


def _supply(check: Check) -> Item:
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
        return Item(PASSED, figures)
    advice = [one for one in check.diagnosis.recommendations if one.stage in OF_THE_WORKERS]
    return at_most(rate.inverse(), 1 / (1 - check.bound), figures, advice, "see the first item: the input's cost")


def _startup(check: Check) -> Item:
    """Check the cost of an epoch's start, spread over its steps."""
    loader, start = check.loader, epoch_start(check.ladder)
    each = start.per_step if start is not None else None
    check.needs_workers()
    check.needs("baseline")
    if not loader.epoch:
        raise Unanswered(NOT_MEASURED, "the loader has no length: its startup cannot be spread over an epoch")
    if each is None:
        kept = loader.persistent_workers and check.session.startups
        why = "the workers persist, and the script began no second epoch" if kept else "the script began no epoch"
        raise Unanswered(NOT_MEASURED, why)
    share = each.beside(check.ladder.ms("baseline").value)
    figures = f"an epoch's start takes {number(each.value * loader.epoch / 1000)} s, {number(each.value)} ms a step "
    figures += f"over an epoch of {loader.epoch} batches: {percent_of('the time', share)}"
    advice = check.advice({"persistent-workers", "one-iterator"})
    return at_most(share, check.bound, figures, advice, "Longer epochs, or a cheaper first batch")


def _cores(check: Check) -> Item:
    """Check workers and threads against the cores that they may use."""
    running = wanting_to_run(check.session)
    check.needs_workers()
    check.needs("baseline")
    queued = check.ladder.evidence("baseline").get("worker_queued")
    if math.isinf(running.cores):
        raise Unanswered(NOT_MEASURED, "the number of usable cores is not known")
    if queued is None:
        raise Unanswered(NOT_MEASURED, "how long the workers wait for a core was not measured")
    figures = f"{running}; a worker waits for a core {percent(queued)} of its time"
    if check.input_is_cheap:  # a loop that does not starve needs no fix
        return Item(PASSED, figures)
    if not running.exceed or queued <= QUEUED:
        return check.judged(figures, _CORES)
    starved, used = check.diagnosis.verdict.starved, others(check.session, check.ladder.windows_used("baseline"))
    if used >= worth_telling(check.session):
        figures += f", but other processes used {number(used)} cores"
        raise Unanswered(OPEN, f"{figures}; audit on a quiet machine")
    if starved is None or starved.low <= check.bound:
        raise undecided(figures)
    return failed(figures, check.advice(_CORES), "Give the workers less to do, or each device more cores")


def _knobs(check: Check) -> Item:
    """Check the loader's settings against the gain of other settings."""
    if what_if(check.ladder) is None:
        check.needs("baseline", "device")
    names = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
    figures = ", ".join(f"{name}={getattr(check.loader, name)}" for name in names)
    measured = sum(arm.speedup is not None for arm in arms(check.session))
    if measured:
        figures += f"; {counted(measured, 'other setting')} measured"
    return check.judged(figures, KNOBS)


def _transfer(check: Check) -> Item:
    """Check what copying costs the loop, and report whether it is pinned and asynchronous.

    Copies that the loop makes while it waits for the loader anyway pass: without them it would be no faster.
    """
    check.needs_a_device()
    check.needs("baseline", "device", "host")
    share, base, batch = copying_share(check.ladder), check.ladder.ms("baseline").value, check.session.batch
    copied = [leaf for leaf in batch.leaves if leaf.copied] if batch is not None else []
    waited = [leaf for leaf in copied if not leaf.non_blocking]
    if batch is None or batch.unwatched or all(leaf.copied is None for leaf in batch.leaves):
        why = batch.unwatched if batch is not None else ""
        how = f"how the loop copies was not observed{f': {why}' if why else ''}"
    elif not copied:
        how = "no tensor of a batch was copied unchanged"
    else:
        how = (
            f"the loop waits for the copy of {batch_text(waited)}" if waited else "from pinned memory, without waiting"
        )
    part = f"{percent_of('', share)} of {number(base)} ms"
    figures = f"{part}; {how}"
    if check.input_is_cheap:
        return Item(PASSED, figures)
    model = what_if(check.ladder)
    if model is not None and share.low > check.bound:
        gain = model.faster(Change(loop=share.times(model.base)))
        if gain.high < 1 / (1 - check.bound):
            return Item(PASSED, f"{part}, but without them the loop would be {number(gain.value)}x as fast; {how}")
    otherwise = "load the next batch to the device while a step runs"
    return at_most(share, check.bound, figures, check.advice(_COPYING), otherwise)


def _syncs(check: Check) -> Item:
    """Check for calls that wait for the device in every step.

    Without them a step becomes shorter by at most the time spent in them, and by the time in which the device idles.
    """
    found = check.session.syncs
    check.needs_a_device("there is no device to wait for")
    if found is None:
        check.needs("host")
        raise Unanswered(NOT_MEASURED, "time ran out before steps were watched")
    if found.unwatched:
        raise Unanswered(NOT_MEASURED, found.unwatched)
    seen, todo = f"{found.steps} steps watched", list[str]()
    if not found.calls:
        return Item(PASSED, f"none in {seen}")
    for call in found.calls:
        often = "once a step" if call.per_step == 1 else f"{number(call.per_step)} times a step"
        took = f", {number(call.ms_per_step)} ms" if call.ms_per_step is not None else ""
        todo.append(f"{call.call} at {call.where} ({often}{took}): {call.help}")
    figures = f"{counted(len(found.calls), 'call')} of the loop; {seen}"
    known = [call.ms_per_step for call in found.calls if call.ms_per_step is not None]
    step = check.ladder.ms("baseline").value if check.ladder.has("baseline") else None
    if step is not None and len(known) == len(found.calls) and sum(known) <= check.bound * step:
        return Item(PASSED, f"{figures}; they take {number(sum(known))} of {number(step)} ms")
    busy = check.ladder.evidence("device").get("gpu_utilization", 0.0)
    if busy >= 1 - check.bound:
        return Item(PASSED, f"{figures}; fed from a cache the device works {percent(busy)} of the time")
    if len(known) < len(found.calls) and sum(known) <= check.bound * (step or 0.0):
        return Item(OPEN, f"{figures}; how long they take is not known", [], todo)
    return Item(FAILED, figures, [], todo)


def _light(check: Check) -> Item:
    """Check whether a batch has redundant bytes, without which copying would gain enough."""
    check.needs_a_device()
    leaves = check.session.batch.leaves if check.session.batch is not None else []
    if not leaves:
        raise Unanswered(NOT_MEASURED, "the contents of a batch were not inspected")
    if what_if(check.ladder) is None:
        check.needs("baseline", "device")
    figures = f"a batch has {bytes_text(sum(leaf.nbytes for leaf in leaves))} in {counted(len(leaves), 'tensor')}"
    found = check.judged(figures, _LIGHTER)
    if found.status == FAILED:
        return replace(found, figures=f"{figures}; {'; '.join(one.evidence[0] for one in found.advice)}")
    if not any(one.id in _LIGHTER for one in check.predictions):  # what other bytes would gain is not known
        return replace(found, figures=f"{figures}; no redundant bytes were found")
    return replace(found, figures=f"{found.figures}; fewer would gain less than {percent(check.bound)} of a step")


def _unread(check: Check) -> Item:
    """Check for tensors that are copied to the device but not read there."""
    check.needs_a_device()
    batch = check.session.batch
    if batch is not None and batch.unwatched:
        raise Unanswered(NOT_MEASURED, batch.unwatched)
    leaves = batch.leaves if batch is not None else []
    copied = [leaf for leaf in leaves if leaf.copied]
    known = [leaf for leaf in copied if leaf.read is not None]
    if leaves and all(leaf.copied is False for leaf in leaves):
        raise Unanswered(DOES_NOT_APPLY, "no tensor of a batch is copied to the device unchanged")
    if not known:
        raise Unanswered(NOT_MEASURED, "no watched step showed whether the tensors are read")
    idle = [leaf for leaf in known if not leaf.read]
    figures = f"{len(known) - len(idle)} of {len(copied)} copied tensors were seen to be read"
    if not idle:
        return Item(PASSED, figures)
    if what_if(check.ladder) is None:  # what their copies cost is not known
        check.needs("baseline", "device")
    found = check.judged(figures, {"unread"})
    if found.status == FAILED:
        return replace(found, figures=found.advice[0].evidence[0])
    little = f"leaving {batch_text(idle)} on the host would gain less than {percent(check.bound)} of a step"
    return replace(found, figures=f"{figures}; {little}")


def next_round(session: Session, gate: float) -> list[str]:
    """Return the rungs that need another window each; empty if every item is decided or never will be.

    Every rung gets a few windows, controls included. Then the whole pipeline's cost is compared with ``gate``, a share
    of the step, and copying and the loader alone with :func:`least_worth`. The transform chain is not cut.
    """
    ladder, bound = LadderView(session), least_worth(gate)
    refused = {rung.name for rung in session.rungs.values() if not rung.available}
    rungs = {name for name in session.rungs if not fed_apart(name)} - {FEWER_THREADS}
    wanted = {name for name in rungs if ladder.windows(name) < (1 if name == LONGER else _ENOUGH)}
    compared: list[tuple[str, str, Interval, float]] = []
    if "baseline" in ladder.rungs and len(ladder.rungs) > 1:
        top, starved = ladder.rungs[0], measured_share(ladder)
        if starved is not None:
            compared.append(("baseline", top, starved, gate))
        if {"device", "host"} <= {*ladder.rungs}:
            compared.append(("device", "host", copying_share(ladder), bound))
        if ladder.has("supply") and ladder.has("worker"):
            compared.append(("supply", top, margin(ladder).inverse(), 1 / (1 - bound)))
    for one, other, interval, most in compared:
        if exceeds(interval, most) is None and not {one, other} & refused:
            wanted |= {one, other}
    return ordered(wanted - refused)


#: Each check's id and title, and the function that makes it. Functions raise :class:`Unanswered`.
CHECKS: tuple[tuple[str, str, Callable[[Check], Item]], ...] = (
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
            result = Item(why.status, str(why))
        items.append(replace(result, id=id, title=title.format(gate=percent(gate), bound=percent(check.bound))))
    return Audit(diagnosis, gate, items)
