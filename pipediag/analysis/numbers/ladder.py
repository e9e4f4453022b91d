"""Read the measured ladder as numbers: milliseconds per step of each rung, compared between neighbours in time."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from ...session import (
    CACHED,
    LONGER,
    PLAIN,
    RUNGS,
    STAGE_OF_RUNG,
    Link,
    Observed,
    Session,
    Window,
    cut_of,
    fed_apart,
    is_of_ladder,
    ordered,
    settings_of,
)
from .foreign_load import (
    alike,
    foreign_cores,
    foreign_ms,
    mean_account,
    others,
    wait_ms,
    without_queueing,
    worth_telling,
)
from .intervals import Interval, exactly, largest
from .paired_windows import PACE, Noise, around, mean_rate, ratio_of_pairs
from .paired_windows import share as share_of_sums
from .rare_steps import RareSteps, with_pause

#: Standard deviation of the logarithm of a window without waiting, relative to its neighbour in time: windows fed from
#: the device agreed to 0.01 or 0.02 on an H200.
QUIET = 0.02
#: The same if training runs on the CPU: its steps drift with the host.
QUIET_CPU = 0.07
#: The same for a window that only waits for workers; PACE refers to the ratio of two windows.
LOUD = PACE.sd / math.sqrt(2)

#: Rungs that measure the training process's own side, fastest first. The stages of the others are the workers'.
OWN_SIDE = RUNGS[: RUNGS.index("worker") + 1]
#: Share of the cores in use above which the machine counts as full.
_FULL = 0.9
#: Largest share of a step that is attributed to other processes.
_MOST_FOREIGN = 0.8
#: A block of observed steps is a pause if it takes more than these seconds and this many times the usual time a step.
_STILL, _UNUSUAL = 1.0, 10.0

#: PACE refers to windows of three worker rounds; how many a single window holds is unknown.
_ROUNDS = 3
#: Number of steps that count as a round if there are fewer workers, or none.
_FEW = 4

#: Workers that take this many times their later time per batch are warming up; neighbouring windows of recorded runs
#: differ by far less.
_WARM_UP = 1.3
#: The same for steps fed from a cache.
_COLD = 1.1


class Grown(NamedTuple):
    """Milliseconds per step that the training thread is longer at work: on a CPU, without a core, blocked elsewhere.

    ``queued`` is its waiting for a core because of the own processes, ``blocked`` its blocking outside ``next()``.
    """

    cpu: float
    queued: float
    blocked: float


#: Ratio of two times that are about equal.
_ABOUT = 0.8
#: Figures of evidence that add up over batches: what a worker takes for one, and for collating it.
_OF_A_BATCH = {"worker_ms", "collate_ms"}
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _fed_by(window: Window) -> str:
    """Return the rung of a window; the loop as it is has two."""
    return "baseline" if window.rung in PLAIN else window.rung


def _typical_batch(window: Window) -> float:
    """Return the milliseconds that workers took for most batches of a window; 0 if unknown."""
    seen = window.evidence
    return seen.get("typical_ms", seen.get("worker_ms", 0.0))


def _once(method: Callable[Concatenate[LadderView, _P], _T]) -> Callable[Concatenate[LadderView, _P], _T]:
    """Compute a figure of a ladder once for the same arguments."""

    @functools.wraps(method)
    def kept(self: LadderView, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        key = (method.__name__, *args, *kwargs.items())
        if key not in self._known:
            self._known[key] = method(self, *args, **kwargs)
        found: _T = self._known[key]
        return found

    return kept


class LadderView:
    """A session's windows as they are now, read rung by rung and paired round by round.

    If the loop ended before the first baseline window, its observed steps replace the baseline. All windows are read as
    if they had met as many rare steps as there are on average: ``rare``.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._windows: dict[str, dict[int, Window]] = {}
        self._unlike: dict[str, list[Window]] = {}  # left out, as other processes used more or fewer cores
        self._known: dict[tuple[object, ...], Any] = {}
        paused = [window for window in session.windows if window.account and window.account.left_out_s]
        counts = Counter(map(_fed_by, paused))
        self._pauses = {rung for rung, count in counts.items() if count > 1}  # that is how its steps are
        trials = {window.round for window in session.windows if fed_apart(window.rung)}
        for window in session.windows:
            if settings_of(window.rung) is not None:  # see halving
                continue
            if not fed_apart(window.rung) and window.round in trials:
                continue  # the baseline of a trial, not of the ladder
            whole = with_pause(window) if _fed_by(window) in self._pauses else window
            self._windows.setdefault(window.rung, {})[window.round] = whole
        self._leave_out_warm_up()
        self._leave_out_unlike_load()
        self.rare = RareSteps(window for windows in self._windows.values() for window in windows.values())
        for rung, windows in self._windows.items():
            if is_of_ladder(rung) or rung == LONGER:
                self._windows[rung] = {round_: self.rare.spread(window) for round_, window in windows.items()}
        self._only_observed = "baseline" not in self._windows
        if self._only_observed and session.observed:
            self._windows["baseline"] = {n: _window(one) for n, one in enumerate(_going(session.observed))}
        #: The ladder's measured rungs, fastest first, without the controls.
        self.rungs = [name for name in ordered(self._windows) if is_of_ladder(name)]

    def _leave_out_warm_up(self) -> None:
        """Drop the first baseline windows if their workers were far slower than later, with most of their batches.

        A few batches that take far longer than the others are no warm-up: the training has them, too.

        Also drop the first windows fed from a cache if another device than the CPU was slower in them: such steps do
        not depend on the host's load. On the CPU they do, and a loop that was slower by chance would be left out, but
        none that was faster. First-touched pages, cold files and clock ramp-up make the start of a training untypical.
        """
        cold = () if self.session.device_type == "cpu" else (("device", _COLD), ("host", _COLD))
        for rung, apart in (("baseline", _WARM_UP), *cold):
            windows = self._windows.get(rung, {})
            took = {
                round_: _typical_batch(window) if rung == "baseline" else window.ms_per_step
                for round_, window in sorted(windows.items())
            }
            while len(took) > 1:
                first = min(took)
                slow = took.pop(first)
                if not 0 < apart * statistics.median(took.values()) < slow:
                    break
                del windows[first]

    def _leave_out_unlike_load(self) -> None:
        """Drop the windows of a rung in which other processes used more or fewer cores than in its others.

        If that would drop all that are neighbours in time of the baseline's, drop the others.
        """
        tolerance, beside = worth_telling(self.session), self._windows.get("baseline", {}).keys()
        for rung, windows in self._windows.items():
            alike_ones = alike([*windows.values()], tolerance)
            kept = {round_ for round_, window in windows.items() if any(window is one for one in alike_ones)}
            if windows.keys() & beside and not kept & beside:
                kept = windows.keys() & beside
            self._unlike[rung] = [windows.pop(round_) for round_ in sorted(windows.keys() - kept)]

    def _seen(self, rung: str, key: str) -> list[Window]:
        return [window for window in self._windows.get(rung, {}).values() if key in window.evidence]

    def _step_ms(self, window: Window) -> float:
        """Return milliseconds per step, without what workers do for pipediag only: copying cached items, inspection.

        Workers do this in parallel, so a step waits only for its share of it, and never longer than its wait.
        """
        step, seen = window.ms_per_step, window.evidence
        ours = (seen.get("copy_ms", 0.0) + seen.get("own_ms", 0.0)) / max(1, self.session.workers)
        return step - min(ours, 0.9 * step, seen.get("wait_ms", math.inf))

    @property
    def cut_out(self) -> list[tuple[float, bool]]:
        """Seconds that were cut out of windows, and whether the process is known to have been stopped then."""
        accounts = [(one.account, _fed_by(one) in self._pauses) for one in self.session.windows if one.account]
        stops = [(one.stopped_s, True) for one, _ in accounts if one.stopped_s]
        return stops + [(one.left_out_s, False) for one, usual in accounts if one.left_out_s and not usual]

    def stood_still_for(self, ms: float) -> bool:
        """Return whether the process stood still for about so many milliseconds, by a pause cut out of a window."""
        pauses = [1000 * w.account.left_out_s for w in self.session.windows if w.account and w.account.left_out_s]
        return any(_ABOUT * pause < ms < pause / _ABOUT for pause in pauses) and not self._pauses

    @property
    def steady(self) -> bool:
        """True if the baseline windows agree on the speed of the workers."""
        made = [window.evidence["worker_ms"] for window in self._seen("baseline", "worker_ms")]
        return len(made) < 2 or max(made) <= _WARM_UP * min(made)

    @property
    def intervened(self) -> bool:
        """True if any other rung was measured, so that the loop's speed without waiting is known."""
        return "baseline" in self.rungs and len(self.rungs) > 1

    @property
    def ceiling(self) -> str:
        """The rung that gives the loop's speed without input cost: the fastest of those cached in this process."""
        cached = [rung for rung in CACHED if self.has(rung)]
        return min(cached, key=lambda rung: self.ms(rung).value) if cached else self.rungs[0]

    @property
    def _in_turn(self) -> bool:
        """True if the CPU makes batches and trains in turn."""
        loader = self.session.loader
        return self.session.device.get("type") == "cpu" and loader is not None and not loader.num_workers

    @property
    def best(self) -> Interval:
        """Milliseconds per step without any input cost.

        They follow from the baseline's step and what it loses to the ceiling, which is compared between neighbours in
        time: on a busy host the mean step under the ceiling may exceed the baseline's. A CPU that makes batches and
        trains in turn saves at least the time that it spends in ``next()``.
        """
        gain, waited = largest(self.ratio("baseline", self.ceiling), exactly(1.0)), self.waited("baseline")
        if self._in_turn and waited is not None:
            gain = largest(gain, Interval(*(1 / max(1e-3, 1 - share) for share in vars(waited).values())))
        return gain.inverse(self.ms("baseline").value)

    @property
    def quiet(self) -> float:
        """Prior standard deviation of the logarithm of a window without waiting, on this device."""
        return QUIET_CPU if self.session.device.get("type") == "cpu" else QUIET

    def has(self, rung: str) -> bool:
        return rung in self._windows

    def lacks(self, rung: str) -> bool:
        """Return whether a rung that exists in this pipeline was not measured."""
        return not self.has(rung) and self._exists(rung)

    def windows(self, rung: str) -> int:
        """Return the number of windows of a rung; observed steps do not count."""
        return len(self.windows_used(rung))

    def times(self, rung: str) -> int:
        """Return at how many separate times a rung was measured; observed steps do not count.

        Windows back to back are one time: what makes the machine faster or slower for some seconds does it to both.
        """
        used = {window.round for window in self.windows_used(rung)}
        stretches = itertools.groupby(self.session.windows, key=lambda window: window.rung)
        return sum(name == rung and any(window.round in used for window in windows) for name, windows in stretches)

    @_once
    def values(self, rung: str) -> list[float]:
        """Return the milliseconds per step of each window of ``rung``."""
        return [self._step_ms(window) for window in self._windows.get(rung, {}).values()]

    @_once
    def ms(self, rung: str) -> Interval:
        """Return milliseconds per step under ``rung``, over all its steps."""
        values = self.values(rung)
        noise = self._noise(rung)
        if len(values) == 1:
            return around(values[0], noise)
        level, mean = mean_rate(values, noise), self._mean_ms(self._windows[rung].values())
        return Interval(mean, level.low * mean / level.value, level.high * mean / level.value)

    def cost(self, slow: str, fast: str) -> Interval:
        """Return the milliseconds per step that ``slow`` adds to ``fast``."""
        return self.share(slow, fast).times(self.ms(slow).value)

    def beside(self, rung: str, slow: str = "baseline") -> Interval:
        """Return milliseconds per step under ``rung``, under the load that other processes were under ``slow``."""
        return self.ratio(slow, rung).inverse(self.ms(slow).value)

    @_once
    def ratio(self, slow: str, fast: str) -> Interval:
        """Return the ratio of a step under ``slow`` to a step under ``fast``, from neighbours in time if any exist.

        What other processes did to one of the two windows alone is taken out: the least that it can have been. The
        interval grows by half of that, and reaches down to the ratio without the most.
        """
        one, other = self._noise(slow), self._noise(fast)
        noise = Noise(math.hypot(one.sd, other.sd), min(one.degrees, other.degrees))
        pairs, mine = self.steps_of_pairs(slow, fast), self.ms(slow).value
        moved, most = self._moved(slow, fast)
        ours, theirs = mine, self.ms(fast).value
        if paired := self.paired(slow, fast):  # others may be of a time at which the machine was faster or slower
            ours, theirs = (self._mean_ms(windows) for windows in zip(*paired, strict=True))
        value = ours / (theirs + moved)
        found = ratio_of_pairs(pairs, noise) if pairs else around(value, noise)
        found = found.times(value / found.value) if found.low <= value <= found.high else found
        found = found.widened(abs(moved) / 2 / mine)
        return Interval(found.value, found.low * (theirs + moved) / (theirs + most), found.high)

    def _mean_ms(self, windows: Collection[Window]) -> float:
        """Return the mean of a step over several windows: longer ones weigh more."""
        return math.fsum(self._step_ms(one) * one.steps for one in windows) / sum(one.steps for one in windows)

    def paired(self, slow: str, fast: str) -> list[tuple[Window, Window]]:
        """Return the windows of two rungs that are neighbours in time; observed steps have no neighbours."""
        if slow == "baseline" and self._only_observed:
            return []
        before, after = self._windows[slow], self._windows[fast]
        return [(before[round_], after[round_]) for round_ in sorted(before.keys() & after.keys())]

    @_once
    def steps_of_pairs(self, slow: str, fast: str) -> list[tuple[float, float]]:
        """Return milliseconds per step of neighbours in time, both under the load that the slower one was under."""
        return [
            (self._step_ms(one), self._step_ms(other) + self._foreign_ms(one, other, fast)[0])
            for one, other in self.paired(slow, fast)
        ]

    def _foreign_ms(self, slow: Window, window: Window, fast: str) -> tuple[float, float]:
        """Return what other processes added to a step of ``slow`` but not of ``window``, which is one of ``fast``.

        The least that it can have been, and the most.
        """
        found = foreign_ms(slow, window) if fast in OWN_SIDE else None
        low, high = -_MOST_FOREIGN * window.ms_per_step, _MOST_FOREIGN * slow.ms_per_step
        # Never more than the step: the step may not have waited for all threads that waited for a core.
        least, most = (min(max(added, low), high) for added in found or (0.0, 0.0))
        return least, most

    def _moved(self, slow: str, fast: str) -> tuple[float, float]:
        """Return the mean of what other processes added to steps of ``slow`` and not to those of ``fast``."""
        found = [self._foreign_ms(one, other, fast) for one, other in self.paired(slow, fast)]
        least, most = (statistics.fmean(added) for added in zip(*found, strict=True)) if found else (0.0, 0.0)
        return least, most

    def disturbed(self, slow: str, fast: str) -> float:
        """Return the largest share of a step that other processes may have added to one of two neighbours alone."""
        added = [(one, self._foreign_ms(one, other, fast)) for one, other in self.paired(slow, fast)]
        return max((max(map(abs, found)) / one.ms_per_step for one, found in added), default=0.0)

    @_once
    def crowded(self, slow: str, fast: str) -> float:
        """Return the share of a step of ``slow`` for which other processes make the loop wait for a core under
        ``fast``; 0 if they use too little to tell."""
        if others(self.session, self.windows_used(slow)) < worth_telling(self.session):
            return 0.0
        pairs = self.paired(slow, fast)
        return statistics.median([one.account.queue_ms / now.ms_per_step for now, one in pairs if one.account] or [0.0])

    def unlike(self, slow: str, fast: str) -> float | None:
        """Return the share of a step under ``slow`` that one under ``fast`` saves while other processes use cores that
        they usually leave alone; None if no windows of both were left out for that."""
        many = worth_telling(self.session)
        both = [[w for w in self._unlike.get(rung, []) if (foreign_cores(w) or 0.0) >= many] for rung in (slow, fast)]
        return 1 - self._mean_ms(both[1]) / self._mean_ms(both[0]) if all(both) else None

    def grown(self, rung: str) -> Grown | None:
        """Return how much longer the training thread works in a baseline step than under ``rung``; None if unknown.

        Whatever the workers take from the training process shows there.
        """
        paired = self.paired("baseline", rung)  # others may be of a time at which the machine was busier
        sides = zip(*paired, strict=True) if paired else map(self.windows_used, ("baseline", rung))
        now, then = (mean_account(list(windows)) for windows in sides)
        if now is None or then is None:
            return None
        queued = now.queued_ms - then.queued_ms - self._moved("baseline", rung)[0]
        return Grown(*(max(0.0, more) for more in (now.cpu_ms - then.cpu_ms, queued, now.other_ms - then.other_ms)))

    def share(self, slow: str, fast: str) -> Interval:
        """Return the share of a step under ``slow`` that a step under ``fast`` saves."""
        ratio = self.ratio(slow, fast)
        return Interval(1 - 1 / ratio.value, 1 - 1 / ratio.low if ratio.low > 0 else -math.inf, 1 - 1 / ratio.high)

    @_once
    def waited(self, rung: str) -> Interval | None:
        """Return the share of a step in which the loop waited for a batch, or None if unknown."""
        seen = self._seen(rung, "wait_ms")
        if not seen:
            return None
        times = [without_queueing(w) if self._in_turn else (w.ms_per_step, wait_ms(w)) for w in seen]
        wholes = [step * w.steps for (step, _), w in zip(times, seen, strict=True)]
        parts = [min(waits, step) * w.steps for (step, waits), w in zip(times, seen, strict=True)]
        value = sum(parts) / sum(wholes)
        # The loop's own part of the step has little noise: the step varies with its share of waiting.
        round_ = max(_FEW, self.session.workers)
        few = max(1.0, round_ * len(seen) / sum(w.steps for w in seen))
        noise = Noise(LOUD * math.sqrt(_ROUNDS * few) * value * (1 - value), PACE.degrees)
        return share_of_sums(parts, wholes, noise=noise)

    def busy_cores(self, rung: str) -> float:
        """Return the cores in use under a rung, of those the process may use; under a quota only its own use counts."""
        used, busy = (self.evidence(rung).get(key, 0.0) for key in ("cores_used", "cores_busy"))
        return used if self.session.environment.get("cgroup_quota") else max(used, busy)

    def full(self, rung: str) -> bool:
        """Return whether all cores are in use under a rung: any further work slows other work down."""
        return self.busy_cores(rung) >= _FULL * (self.session.cores or math.inf)

    @property
    def waits_beside(self) -> float:
        """Share of a baseline step in which the loop waits for other loaders that every step draws from."""
        beside = self.evidence("baseline").get("beside_ms", 0.0)
        return beside / self.ms("baseline").value if beside else 0.0

    def making(self, rung: str) -> float | None:
        """Return a worker's mean milliseconds for a batch under ``rung``, or None if unknown."""
        seen = self._seen(rung, "worker_ms")
        steps = sum(w.steps for w in seen)
        return sum(w.evidence["worker_ms"] * w.steps for w in seen) / steps if steps else None

    def beyond_usual(self, rung: str) -> float:
        """Return the share of the workers' time under ``rung`` by which slow batches take longer than usual ones."""
        seen = [(w.evidence["worker_ms"], _typical_batch(w), w.steps) for w in self._seen(rung, "worker_ms")]
        whole = sum(made * steps for made, _, steps in seen)
        return sum(max(0.0, made - usual) * steps for made, usual, steps in seen) / whole if whole > 0 else 0.0

    @_once
    def _noise(self, rung: str) -> Noise:
        """Return the prior noise of a window: it grows with the share of the step that waits for workers.

        The shorter the window, the more: it shrinks with the square root of the workers' rounds in it.
        """
        waits = [window.evidence["wait_ms"] / window.ms_per_step for window in self._seen(rung, "wait_ms")]
        part = min(1.0, statistics.median(waits)) if waits and rung not in CACHED else 0.0
        steps = statistics.median([window.steps for window in self._windows[rung].values()])
        rounds = (
            min(_ROUNDS, max(1.0, steps / self.session.workers))
            if self.session.workers and not self._only_observed
            else _ROUNDS
        )
        return Noise(self.quiet + (LOUD * math.sqrt(_ROUNDS / rounds) - self.quiet) * part, PACE.degrees)

    def below(self, rung: str) -> str | None:
        """Return the next faster measured rung, or None."""
        number = self.rungs.index(rung)
        return self.rungs[number - 1] if number else None

    def stage(self, rung: str) -> str:
        """Return the stage charged with the difference between ``rung`` and the measured rung below it.

        If rungs between the two are missing, the difference includes their stages. If it includes loading and other
        dataset code, the stage is ``load``, since it cannot be split further.
        """
        covered = self.covered(rung)
        return "load" if "load" in covered else covered[-1]

    def covered(self, rung: str) -> list[str]:
        """Return every stage in that difference, in pipeline order from the device outwards."""
        below = self.below(rung)
        last = _base(rung)
        first = 0 if below is None else _base(below) + (cut_of(below) is None)
        return [STAGE_OF_RUNG[r] for r in RUNGS[first : last + 1] if r == RUNGS[last] or self._exists(r)]

    def links(self, rung: str) -> list[Link]:
        """Return the links of the transform chain in that difference; empty if it holds no transforms."""
        if rung != "raw" and cut_of(rung) is None:
            return []
        below = self.below(rung)
        behind = cut_of(below) if below is not None else None
        return self.session.links[cut_of(rung) or 0 : behind]

    def _exists(self, rung: str) -> bool:
        this = self.session.rungs.get(rung)
        return this is None or this.exists

    def windows_used(self, rung: str) -> list[Window]:
        """Return the windows of a rung that count, in the order of their rounds; without observed steps."""
        if rung == "baseline" and self._only_observed:
            return []
        return [window for _, window in sorted(self._windows.get(rung, {}).items())]

    @_once
    def evidence(self, rung: str) -> dict[str, float]:
        """Return the median over the rung's windows of each figure of evidence; the mean of what a batch takes.

        A few slow batches are in few windows, but make up their part of the work.
        """
        values: dict[str, list[tuple[float, int]]] = {}
        for window in self._windows.get(rung, {}).values():
            for key, value in window.evidence.items():
                values.setdefault(key, []).append((value, window.steps))
        found = {key: statistics.median(value for value, _ in seen) for key, seen in values.items()}
        for key in _OF_A_BATCH & values.keys():
            found[key] = sum(value * steps for value, steps in values[key]) / sum(steps for _, steps in values[key])
        return {key: round(value, 4) for key, value in found.items()}


def _going(observed: list[Observed]) -> list[Observed]:
    """Return the blocks of observed steps without one in which the loop stood still."""
    paces = sorted(one.seconds / one.steps for one in observed)
    if len(paces) < 3:
        return observed
    usual = paces[(len(paces) - 1) // 2]
    still = [one for one in observed if one.seconds > _STILL and one.seconds / one.steps > _UNUSUAL * usual]
    return [one for one in observed if one not in still] if len(still) == 1 else observed


def _window(one: Observed) -> Window:
    seen = {**one.evidence, "wait_ms": 1000 * one.waited / one.steps}
    if one.worker_ms:
        seen["worker_ms"] = one.worker_ms
    return Window("baseline", -1, one.steps, one.seconds, one.steps, one.attempt, seen)


def _base(rung: str) -> int:
    """Return the index of a rung in :data:`RUNGS`; cuts of the transform chain have the index of ``raw``."""
    return RUNGS.index("raw" if cut_of(rung) is not None else rung)
