"""The measured ladder as numbers: milliseconds per step of each rung, compared between neighbours in time."""

from __future__ import annotations

import math
import statistics

from ..session import (
    CACHED,
    CONTROLS,
    RUNGS,
    STAGE_OF_RUNG,
    Link,
    Observed,
    Session,
    Window,
    cut_of,
    fed_apart,
    ordered,
    settings_of,
)
from .estimate import PACE, Noise, mean_rate, paired_ratio
from .estimate import share as share_of_sums
from .intervals import Interval, student_t

#: Standard deviation of the logarithm of one window that waits for no worker, from its neighbour in time: windows fed
#: from the device held to a hundredth or two on an H200.
QUIET = 0.02
#: The same where training takes the CPU's time: its steps drift as the host does.
QUIET_CPU = 0.05
#: The same of a window that does nothing but wait for workers; PACE is of the ratio of two.
LOUD = PACE.sd / math.sqrt(2)

#: PACE is that of windows of three rounds; of one that is alone it is not known how many it holds.
_ROUNDS = 3
#: Steps that count as a round where there are fewer workers or none.
_FEW = 4

#: Workers that take this many times as long for a batch as they do later are warming up: far more than neighbouring
#: windows of recorded runs differ by.
_WARM_UP = 1.3
#: The same of steps that are fed from a cache.
_COLD = 1.1


class LadderView:
    """Reads a session's windows rung by rung and pairs them round by round.

    Where the loop ended before one window of the baseline, its own steps, as they were observed, stand for it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._windows: dict[str, dict[int, Window]] = {}
        self._ms: dict[str, dict[int, float]] = {}
        trials = {window.round for window in session.windows if fed_apart(window.rung)}
        for window in session.windows:
            if settings_of(window.rung) is not None or not known(window.rung):  # see halving
                continue
            if not fed_apart(window.rung) and window.round in trials:
                continue  # it is there to be compared with what is tried, when the ladder's rungs are not measured
            self._windows.setdefault(window.rung, {})[window.round] = window
            self._ms.setdefault(window.rung, {})[window.round] = window.ms_per_step - _copy_ms(window, session)
        self._leave_out_warm_up()
        if "baseline" not in self._ms and session.observed:
            self._windows["baseline"] = {n: _window(one) for n, one in enumerate(session.observed)}
            self._ms["baseline"] = {n: w.ms_per_step for n, w in self._windows["baseline"].items()}
        #: The ladder's measured rungs, fastest first; controls are not among them.
        self.rungs = [name for name in ordered(self._ms) if name in RUNGS or cut_of(name) is not None]

    def _leave_out_warm_up(self) -> None:
        """Drop the first windows of the baseline whose workers were far slower than they are later.

        The same goes for the first windows fed from a cache, whose steps do not depend on anybody's load.
        Pages that are touched for the first time, cold files and clocks make a training begin unlike it goes on.
        """
        for rung, apart in (("baseline", _WARM_UP), ("device", _COLD), ("host", _COLD)):
            windows = self._windows.get(rung, {})
            took = [
                (n, w.evidence.get("worker_ms", 0.0) if rung == "baseline" else w.ms_per_step)
                for n, w in sorted(windows.items())
            ]
            while len(took) > 1:
                (first, slow), *later = took
                usual = statistics.median(ms for _, ms in later)
                if not 0 < apart * usual < slow:
                    break
                del self._windows[rung][first], self._ms[rung][first]
                took = later

    @property
    def steady(self) -> bool:
        """Whether the windows of the baseline agree about how fast the workers are."""
        made = [
            w.evidence["worker_ms"] for w in self._windows.get("baseline", {}).values() if "worker_ms" in w.evidence
        ]
        return len(made) < 2 or max(made) <= _WARM_UP * min(made)

    @property
    def intervened(self) -> bool:
        """Whether the loop was fed from a cache as well, so that it is known what it would do without waiting."""
        return "baseline" in self.rungs and len(self.rungs) > 1

    @property
    def ceiling(self) -> str:
        """The rung that says how fast the loop is without its input: of those fed in this process the fastest."""
        cached = [rung for rung in CACHED if rung in self._ms]
        return min(cached, key=lambda rung: self.ms(rung).value) if cached else self.rungs[0]

    def has(self, rung: str) -> bool:
        return rung in self._ms

    def lacks(self, rung: str) -> bool:
        """Whether a rung that has a place in this pipeline was not measured."""
        return not self.has(rung) and self._exists(rung)

    def windows(self, rung: str) -> int:
        """How many windows there are; what was only observed is none."""
        return len(self.session.windows_of(rung)) and len(self._ms.get(rung, {}))

    def values(self, rung: str) -> list[float]:
        """Milliseconds per step of each window of ``rung``."""
        return list(self._ms.get(rung, {}).values())

    def ms(self, rung: str) -> Interval:
        """Milliseconds per step under ``rung``: over all its steps, those of long windows counting for more."""
        values = self.values(rung)
        noise = self._noise(rung)
        if len(values) == 1:
            return _around(values[0], noise)
        level = mean_rate(values, noise)
        steps = [window.steps for window in self._windows[rung].values()]
        mean = sum(ms * n for ms, n in zip(values, steps, strict=True)) / sum(steps)
        return Interval(mean, level.low * mean / level.value, level.high * mean / level.value)

    def cost(self, slow: str, fast: str) -> Interval:
        """Milliseconds per step that ``slow`` adds to ``fast``."""
        share, base = self.share(slow, fast), self.ms(slow).value
        value = base - self.ms(fast).value
        return Interval(value, min(value, base * share.low), max(value, base * share.high))

    def ratio(self, slow: str, fast: str) -> Interval:
        """How many times as long a step takes under ``slow`` as under ``fast``, by neighbours in time if there are."""
        one, other = self._noise(slow), self._noise(fast)
        noise = Noise(math.hypot(one.sd, other.sd), min(one.degrees, other.degrees))
        common = sorted(self._ms[slow].keys() & self._ms[fast].keys())
        value = self.ms(slow).value / self.ms(fast).value
        if not common or (slow == "baseline" and not self.session.windows_of(slow)):
            found = _around(value, noise)
        elif len(common) == 1:
            found = _around(self._ms[slow][common[0]] / self._ms[fast][common[0]], noise)
        else:
            found = paired_ratio([self._ms[slow][r] for r in common], [self._ms[fast][r] for r in common], noise)
        return found.times(value / found.value) if found.low <= value <= found.high else found

    def share(self, slow: str, fast: str) -> Interval:
        """Part of a step under ``slow`` that a step under ``fast`` goes without."""
        ratio = self.ratio(slow, fast)
        return Interval(1 - 1 / ratio.value, 1 - 1 / ratio.low if ratio.low > 0 else -math.inf, 1 - 1 / ratio.high)

    def waited(self, rung: str) -> Interval | None:
        """Part of a step in which the loop waited for a batch; None if that was not seen."""
        seen = [w for w in self._windows.get(rung, {}).values() if "wait_ms" in w.evidence]
        if not seen:
            return None
        wholes = [w.ms_per_step * w.steps for w in seen]
        parts = [min(w.evidence["wait_ms"], w.ms_per_step) * w.steps for w in seen]
        value = sum(parts) / sum(wholes)
        # The loop's own part of the step is quiet: the step varies by as much of it as is wait.
        loader = self.session.loader
        round_ = max(_FEW, loader.num_workers if loader is not None else 0)
        few = max(1.0, round_ * len(seen) / sum(w.steps for w in seen))
        noise = Noise(LOUD * math.sqrt(_ROUNDS * few) * value * (1 - value), PACE.degrees)
        return share_of_sums(parts, wholes, noise=noise)

    def _noise(self, rung: str) -> Noise:
        """The noise of a window as known beforehand: a loop that waits for its workers is as unsteady as they are."""
        quiet = QUIET_CPU if self.session.device.get("type") == "cpu" else QUIET
        if rung in CACHED:
            return Noise(quiet, PACE.degrees)
        waits = [w.evidence["wait_ms"] / w.ms_per_step for w in self._windows[rung].values() if "wait_ms" in w.evidence]
        part = min(1.0, statistics.median(waits)) if waits else 0.0
        return Noise(quiet + (LOUD - quiet) * part, PACE.degrees)

    def below(self, rung: str) -> str | None:
        """The measured rung next to ``rung`` on the fast side."""
        number = self.rungs.index(rung)
        return self.rungs[number - 1] if number else None

    def stage(self, rung: str) -> str:
        """The stage charged with the step from the rung measured below ``rung`` up to ``rung``.

        Where rungs between are missing, their stages are in it too. A step that holds any of the dataset's code
        beside the loading itself is called ``load``, since it cannot be split further.
        """
        covered = self.covered(rung)
        return "load" if "load" in covered else covered[-1]

    def covered(self, rung: str) -> list[str]:
        """Every stage inside that step, in pipeline order from the device outwards."""
        below = self.below(rung)
        last = _base(rung)
        first = 0 if below is None else _base(below) + (cut_of(below) is None)
        return [STAGE_OF_RUNG[r] for r in RUNGS[first : last + 1] if r == RUNGS[last] or self._exists(r)]

    def links(self, rung: str) -> list[Link]:
        """The links of the transform chain inside that step; none where it holds no transforms."""
        if _base(rung) != _RAW:
            return []
        below = self.below(rung)
        behind = cut_of(below) if below is not None else None
        return self.session.links[cut_of(rung) or 0 : behind]

    def _exists(self, rung: str) -> bool:
        this = self.session.rungs.get(rung)
        return this is None or this.exists

    def evidence(self, rung: str) -> dict[str, float]:
        """Median over the rung's windows of every figure seen beside the clock."""
        values: dict[str, list[float]] = {}
        for window in self._windows.get(rung, {}).values():
            for key, value in window.evidence.items():
                values.setdefault(key, []).append(value)
        return {key: round(statistics.median(v), 4) for key, v in values.items()}


def known(rung: str) -> bool:
    """Whether there is such a rung: files of other versions may have others, which mean nothing here."""
    return rung in RUNGS or rung in CONTROLS or cut_of(rung) is not None or fed_apart(rung)


def _window(one: Observed) -> Window:
    """A block of observed steps in the form of a window."""
    seen = {"wait_ms": 1000 * one.waited / one.steps}
    if one.worker_ms:
        seen["worker_ms"] = one.worker_ms
    return Window("baseline", -1, one.steps, one.seconds, one.steps, one.attempt, seen)


def _around(value: float, noise: Noise) -> Interval:
    """One value, or ratio of a pair, as uncertain as what is known of such windows beforehand makes it."""
    arm = student_t(noise.degrees) * noise.sd
    return Interval(value, value * math.exp(-arm), value * math.exp(arm))


_RAW = RUNGS.index("raw")


def _base(rung: str) -> int:
    """The place of a rung among :data:`RUNGS`; cuts of the transform chain lie in the step up to ``raw``."""
    return _RAW if cut_of(rung) is not None else RUNGS.index(rung)


def _copy_ms(window: Window, session: Session) -> float:
    """The part of a step that went into copying cached items, which training does not do.

    Workers make the copies side by side, so a step waits for its share of them only, and for no more than it waits.
    """
    copy = window.evidence.get("copy_ms", 0.0)
    workers = max(1, session.loader.num_workers if session.loader else 1)
    return min(copy / workers, 0.9 * window.ms_per_step, window.evidence.get("wait_ms", math.inf))
