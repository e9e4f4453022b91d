"""Spread what the loop pays only now and then over its steps: starting its loader for an epoch, and other loaders.

The start of an epoch ends the workers of the previous one, launches new ones, and waits for the first batch. The first
launch of a process also imports modules and reads files that later launches find ready, so it is only an upper bound:
the cost is that of the later launches. One that took far longer was disturbed, and is left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from ..session import Place, Session, Startup
from ..session.events import EDITED
from .diagnosis import Stage
from .numbers.intervals import Interval, exactly, total
from .numbers.ladder import LadderView
from .numbers.paired_windows import student_t
from .thresholds import GATE, RUN_TO_RUN
from .waterfall import culprit, ranked
from .words import counted, number, percent, percent_of

#: Standard deviation of the logarithm of a start's time, and its weight in degrees of freedom: later starts of one
#: process differed by 0.02 to 0.12, forked or spawned, on a quiet machine and on one that was three times too busy.
_SPREAD, _WEIGHT = 0.15, 4
#: A start was disturbed if it took this many times as long as usual.
_WILD = 2.0
#: Number of launches, apart from the first, after which no more are needed, and after which no more are tried.
_ENOUGH, _MOST = 3, 5
#: The stages, which are no part of the baseline step.
STARTUP, OTHER_LOADERS = "startup", "other loaders"


@dataclass(frozen=True)
class EpochStart:
    """The start of an epoch."""

    #: What it costs beyond the epoch's steps; its lower end is 0 if only the first launch of a process was seen.
    seconds: Interval
    #: The same in milliseconds, spread over the epoch's steps; None if their number is unknown.
    per_step: Interval | None
    shutdown: float  # seconds of it for ending the workers of the previous epoch
    usual: Startup  # the start that took the middle time of those that show the cost
    starts: int  # number of these starts; 0 if only the first launch of a process was seen
    #: Seconds of it by which a new worker's first batch takes longer than later ones, as it opens files then.
    once: float = 0.0

    @property
    def by_sampler(self) -> bool:
        """True if most of the start is the sampler's choice of the first batches, in the training process."""
        return 2 * self.usual.sampler > self.usual.seconds

    @property
    def launching(self) -> float:
        """The part of the seconds that workers kept from the previous epoch would not take; 0 if unknown."""
        if not self.usual.ready:
            return 0.0
        # Kept workers wait for the sampler as new ones do.
        return min(max(0.0, self.seconds.value - self.usual.sampler), self.usual.ready + self.shutdown + self.once)


def epoch_start(ladder: LadderView) -> EpochStart | None:
    """Return what the start of an epoch costs; None if it is unknown or if there are no workers.

    With persistent workers only epochs after the first count, since the workers start once. Without workers nothing
    starts: the first batch also pays what is done only once.
    """
    loader, ended = ladder.session.loader, [one.shutdown for one in ladder.session.startups if one.shutdown > 0]
    if loader is None or not loader.num_workers:
        return None
    firsts, later = _starts(ladder.session)
    if loader.persistent_workers:
        firsts = []
    # A loop that waits for its workers gets a whole round of batches at once after a start: it would have waited for
    # these anyway, so as much of the first batch's time costs nothing.
    waited = ladder.waited("baseline") if ladder.has("baseline") else None
    hidden = waited.value * ladder.ms("baseline").value * loader.num_workers / 1000.0 if waited is not None else 0.0
    shutdown = statistics.median(ended) if ended else 0.0

    def cost(one: Startup) -> float:
        """The seconds that a start costs beyond the epoch's steps."""
        first_batch = one.seconds - one.ready if one.ready else 0.0
        return max(0.0, one.seconds - min(hidden, max(0.0, first_batch))) + shutdown

    bound = min(map(cost, firsts), default=math.inf)
    later.sort(key=cost)
    if costs := undisturbed([*map(cost, later)], bound):
        seconds, usual = typical(costs), later[(len(costs) - 1) // 2]
    elif firsts:
        seconds, usual = Interval(bound, 0.0, bound), min(firsts, key=lambda one: one.seconds)
    else:
        return None
    per_step = seconds.times(1000.0 / loader.epoch) if loader.epoch else None
    later_batch = ladder.evidence("baseline").get("worker_ms", 0.0) / 1000.0
    once = 0.0
    if usual.ready and later_batch and not loader.iterable:  # a stream begins anew in kept workers, too
        once = max(0.0, usual.seconds - usual.ready - usual.sampler - max(later_batch, hidden))
    return EpochStart(seconds, per_step, shutdown, usual, len(costs), once)


def undisturbed(seconds: list[float], bound: float = math.inf) -> list[float]:
    """Return the times of starts without those that were disturbed; ``bound`` is what one takes at most, roughly."""
    usual = min(bound, statistics.median_low(seconds)) if seconds else bound
    return [one for one in seconds if one <= _WILD * usual]


def typical(seconds: list[float]) -> Interval:
    """Return the geometric mean of the times of some starts with its 95 % interval, by the moderated t of Smyth.

    A few starts that agree by chance do not make it narrow: see :mod:`.paired_windows`. Needs at least one.
    """
    logs = [math.log(max(1e-6, one)) for one in seconds]
    n, centre = len(logs), statistics.fmean(logs)
    degrees = _WEIGHT + n - 1
    variance = (_WEIGHT * _SPREAD**2 + sum((x - centre) ** 2 for x in logs)) / degrees
    arm = student_t(degrees) * math.sqrt(variance / n)
    return Interval(*map(math.exp, (centre, centre - arm, centre + arm)))


def seen_once(ladder: LadderView, besides: float = 0.0) -> str:
    """Return, as a clause, that only the first launch shows what an epoch's start costs.

    The clause is empty if that is not so, or if it costs no more than the gate or than ``besides`` milliseconds a step.
    """
    loader, start = ladder.session.loader, epoch_start(ladder)
    each = start.per_step if start is not None else None
    if each is None or start is None or start.starts or loader is None or not ladder.has("baseline"):
        return ""
    share = each.beside(ladder.ms("baseline").value).high
    if each.high <= besides or share <= GATE:
        return ""
    return (
        f"an epoch's start was seen once only: {number(start.seconds.high)} s, at most {percent(share)} of an epoch of "
        f"{counted(loader.epoch or 0, 'batch', 'batches')}"
    )


def open_start(ladder: LadderView, besides: float = 0.0) -> str:
    """Return, as a clause, that it is open whether an epoch's start costs more than the gate; empty if it is not.

    It does not matter if it costs no more than ``besides`` milliseconds a step.
    """
    start = epoch_start(ladder)
    if start is None or start.per_step is None or not start.starts or not ladder.has("baseline"):
        return seen_once(ladder, besides)
    share = start.per_step.beside(ladder.ms("baseline").value)
    if start.per_step.high <= besides or not share.low < GATE < share.high:
        return ""
    return f"an epoch's start takes {percent_of('an epoch', share)}"


def described(ladder: LadderView, cost: Stage) -> str:
    """Return an amortised cost as a sentence: of what it consists, and what would help."""
    if cost.stage != STARTUP:
        where = cost.culprit.where if cost.culprit is not None else ""
        return next(one.sentence for one in other_loaders(ladder) if one.where == where)
    loader, start = ladder.session.loader, epoch_start(ladder)
    assert loader is not None and start is not None and start.per_step is not None, "it is known to cost something"
    base, one, each = number(ladder.ms("baseline").value), start.usual, start.per_step
    if loader.left_after == 1:
        return (
            f"The loop makes a new iterator of the loader for every batch, as next(iter(loader)) does: that adds "
            f"{number(each.value)} ms to each step of {base} ms. One iterator for many batches pays it only once."
        )
    text = (
        f"Every epoch begins with a wait: spread over the epoch's {loader.epoch} batches, starting the loader adds "
        f"{number(each.value)} ms to each step of {base} ms. "
    )
    if start.by_sampler:
        chosen = f"Of {one.seconds:.2g} s, the sampler takes {one.sampler:.2g} s to choose the first batches. "
        return text + chosen + "A cheaper start of the sampler would help, or longer epochs."
    if loader.persistent_workers:
        return text + "The workers persist already; longer epochs, or a cheaper first batch, would help."
    if one.ready:
        ends = f"ending the last workers takes {start.shutdown:.2g} s, launching new ones "
        launches = ends if start.shutdown else "launching the workers takes "
        text += (
            f"Of {one.seconds + start.shutdown:.2g} s, {launches}{one.launch:.2g} s, their imports and init function "
            f"{max(0.0, one.ready - one.launch):.2g} s, the first batch {max(0.0, one.seconds - one.ready):.2g} s. "
        )
    if ladder.session.warned(EDITED):
        return text + "Workers that are kept would not see what the script changes in its dataset between epochs."
    return text + "persistent_workers=True pays it only once."


def wants_start(session: Session) -> float:
    """Return the share of an epoch that its start may take, if another start is worth seeing; else 0."""
    ladder, loader = LadderView(session), session.loader
    if loader is None or not loader.num_workers or not loader.epoch or not ladder.has("baseline"):
        return 0.0
    (firsts, later), start = _starts(session), epoch_start(ladder)
    if start is not None:
        most = start.seconds.high
    elif firsts:  # of persistent workers: a later epoch begins with their first batch
        most = max(one.seconds - one.ready for one in firsts)
    else:
        return 0.0
    known = start is not None and start.starts >= _ENOUGH
    share = exactly(1000.0 * most / loader.epoch).beside(ladder.ms("baseline").value).value
    return share if share > GATE and not known and len(later) < _MOST else 0.0


def _starts(session: Session) -> tuple[list[Startup], list[Startup]]:
    """Return the first launch of each process, and the later starts of the kind that every epoch of the script has."""
    persistent = session.loader is not None and session.loader.persistent_workers
    firsts: dict[int, Startup] = {}
    later = []
    for one in session.startups:
        if not one.renewed and one.attempt not in firsts:
            firsts[one.attempt] = one
        elif one.renewed or not persistent:
            later.append(one)
    return list(firsts.values()), later


@dataclass(frozen=True)
class OtherLoader:
    """A loader that the loop starts again and again between its steps."""

    where: str  # the line that iterates it
    seconds: Interval  # what the loop's thread spends on it each time, on waiting for its batches too
    kept: float  # the part of it that workers kept from the last time would not take
    every: float  # steps of the training loop from one time to the next, on average
    hidden: float  # milliseconds a step that the loop would wait for its own workers meanwhile
    workers: int  # their number
    persistent: bool  # true if it keeps its workers

    @property
    def per_step(self) -> Interval:
        """The cost in milliseconds a step."""
        return self.spent.shifted(-self.hidden).not_negative()

    @property
    def spent(self) -> Interval:
        """The milliseconds a step that the loop's thread spends on it."""
        return self.seconds.times(1000.0 / self.every)

    @property
    def sentence(self) -> str:
        """What the loop does, and what would help."""
        told = (
            f"The loop starts another loader every {counted(self.every, 'step')}, at {self.where}, and waits "
            f"{number(self.seconds.value)} s for it and its batches each time: {number(self.per_step.value)} ms a step."
        )
        if self.workers and not self.persistent:
            return f"{told} persistent_workers=True there starts its workers only once."
        return f"{told} Using it less often would help."


def other_loaders(ladder: LadderView) -> list[OtherLoader]:
    """Return the other loaders whose cost is known: those used at least twice with training steps in between.

    The first use in a process is left out of the cost: it also pays what is done only once.
    """
    workers, hidden, found = ladder.session.workers, 0.0, []
    if workers and ladder.has("baseline"):
        # The workers make batches meanwhile: without other loaders, a step would take at least a worker's time for a
        # batch divided by their number.
        made = ladder.evidence("baseline").get("worker_ms", 0.0) / workers
        hidden = max(0.0, made - ladder.ms("baseline").value)
    ordered = sorted(ladder.session.other_starts, key=lambda one: (one.where, one.attempt, one.step))
    for where, uses in groupby(ordered, key=lambda one: one.where):
        starts = list(uses)
        again = [(one, one.step - before.step) for before, one in pairwise(starts) if one.attempt == before.attempt]
        if not (steps := sum(between for _, between in again)):
            continue
        seconds = typical(undisturbed([max(0.0, one.seconds) for one, _ in again]))
        kept = sorted(max(0.0, min(one.kept, one.seconds)) for one, _ in again)[len(again) // 2]
        every, last = steps / len(again), starts[-1]
        settings = last.num_workers, last.persistent_workers
        found.append(OtherLoader(where, seconds, min(kept, seconds.value), every, hidden, *settings))
    return found


def amortised(ladder: LadderView) -> list[Stage]:
    """Return the worthwhile costs between the steps, costliest first, in milliseconds a step.

    ``share`` is that of a step with all of them. A cost of which only a bound is known is left out. The intervals hold
    for another run: see :data:`.thresholds.RUN_TO_RUN`.
    """
    if not ladder.has("baseline"):
        return []
    step, session, start = ladder.ms("baseline").value, ladder.session, epoch_start(ladder)
    found = []
    if start is not None and start.per_step is not None:
        place = culprit(session, "sampler") if start.by_sampler else None
        persistent = session.loader is not None and session.loader.persistent_workers
        named = [f"the sampler {place.name}"] if place is not None else ["an epoch's first batch"] * persistent
        found = [Stage(STARTUP, start.per_step, 0.0, place or culprit(session, STARTUP), links=named)]
    found += [Stage(OTHER_LOADERS, one.per_step, 0.0, Place("DataLoader", one.where)) for one in other_loaders(ladder)]
    found = [replace(stage, ms=stage.ms.blurred(RUN_TO_RUN * stage.ms.value)) for stage in found]
    found = [stage for stage in found if stage.ms.low > 0 and stage.ms.beside(step).value >= GATE]
    whole = step + sum(stage.ms.value for stage in found)
    return ranked([replace(stage, share=stage.ms.value / whole) for stage in found])


def with_amortised(share: Interval, step: float, costs: Sequence[Stage]) -> Interval:
    """Return a share of a step of ``step`` milliseconds, as the share of a step with its amortised costs."""
    cost = share.value * step + sum(stage.ms.value for stage in costs)
    rest = step * (1 - share.value)
    whole = cost + rest
    of_the_step = share.shifted(-share.value).times(step / whole)  # the step was measured: only its division is open
    between = []
    for stage in costs:
        reach = (0.0, stage.ms.low - stage.ms.value, stage.ms.high - stage.ms.value)
        between.append(Interval(*((cost + more) / (whole + more) - cost / whole for more in reach)))
    return total([of_the_step, *between]).shifted(cost / whole)
