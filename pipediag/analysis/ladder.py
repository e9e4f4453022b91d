"""The measured ladder as numbers: milliseconds per step of each rung, paired within rounds."""

from __future__ import annotations

import statistics

from ..session import RUNGS, STAGE_OF_RUNG, Link, Session, Window, cut_of, fed_apart, settings_of
from .intervals import Interval, difference, median_interval, ratio

#: A rung counts as measured in full with this many windows.
ENOUGH_WINDOWS = 3


class LadderView:
    """Reads a session's windows rung by rung and pairs them round by round."""

    def __init__(self, session: Session) -> None:
        self.session = session
        #: The ladder's measured rungs, fastest first; controls are not among them.
        self.rungs = session.measured()
        self._ms: dict[str, dict[int, float]] = {}
        trials = {window.round for window in session.windows if fed_apart(window.rung)}
        for window in session.windows:
            if settings_of(window.rung) is not None:  # see halving
                continue
            if not fed_apart(window.rung) and window.round in trials:
                continue  # it is there to be compared with what is tried, when the ladder's rungs are not measured
            self._ms.setdefault(window.rung, {})[window.round] = window.ms_per_step - _copy_ms(window, session)

    def has(self, rung: str) -> bool:
        return rung in self._ms

    def windows(self, rung: str) -> int:
        return len(self._ms.get(rung, {}))

    def values(self, rung: str) -> list[float]:
        """Milliseconds per step of each window of ``rung``."""
        return list(self._ms.get(rung, {}).values())

    def ms(self, rung: str) -> Interval:
        """Milliseconds per step under ``rung``."""
        return median_interval(list(self._ms[rung].values()))

    def cost(self, slow: str, fast: str) -> Interval:
        """Milliseconds per step that ``slow`` adds to ``fast``; an open interval where no round has both."""
        pairs = self._pairs(slow, fast)
        if not pairs:
            apart = self.ms(slow).value - self.ms(fast).value
            return Interval(apart, float("-inf"), float("inf"))
        return difference([s for s, _ in pairs], [f for _, f in pairs])

    def ratio(self, slow: str, fast: str) -> Interval:
        """How many times as long a step takes under ``slow`` as under ``fast``."""
        pairs = self._pairs(slow, fast)
        if not pairs:
            return Interval(self.ms(slow).value / self.ms(fast).value, 0.0, float("inf"))
        return ratio([s for s, _ in pairs], [f for _, f in pairs])

    def share(self, slow: str, fast: str) -> Interval:
        """Part of a step under ``slow`` that a step under ``fast`` goes without."""
        pairs = self._pairs(slow, fast)
        if not pairs:
            return Interval(1 - self.ms(fast).value / self.ms(slow).value, float("-inf"), 1.0)
        found = median_interval([1 - f / s for s, f in pairs])
        return Interval(found.value, found.low, min(1.0, found.high))

    def _pairs(self, slow: str, fast: str) -> list[tuple[float, float]]:
        common = sorted(self._ms[slow].keys() & self._ms[fast].keys())
        return [(self._ms[slow][r], self._ms[fast][r]) for r in common]

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
        standing = self.session.rungs.get(rung)
        return standing is None or standing.exists

    def evidence(self, rung: str) -> dict[str, float]:
        """Median over the rung's windows of every figure seen beside the clock."""
        values: dict[str, list[float]] = {}
        for window in self.session.windows_of(rung):
            for key, value in window.evidence.items():
                values.setdefault(key, []).append(value)
        return {key: round(statistics.median(v), 4) for key, v in values.items()}


_RAW = RUNGS.index("raw")


def _base(rung: str) -> int:
    """The place of a rung among :data:`RUNGS`; cuts of the transform chain lie in the step up to ``raw``."""
    return _RAW if cut_of(rung) is not None else RUNGS.index(rung)


def _copy_ms(window: Window, session: Session) -> float:
    """The part of a step that went into copying cached raw samples before a transform that changes its input.

    The copies belong to the measurement, not to the transform. Workers make them side by side, so a step waits for
    its share of them only.
    """
    copy = window.evidence.get("copy_ms", 0.0)
    workers = max(1, session.loader.num_workers if session.loader else 1)
    return min(copy / workers, 0.9 * window.ms_per_step)
