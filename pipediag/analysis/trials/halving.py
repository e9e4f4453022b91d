"""Find the best loader settings by successive halving, measured against the unmodified loader.

A round measures the loop on the unmodified loader and under every setting still in the race, in varied order, so that
machine drift affects all alike. A setting's score is its speedup over the unmodified loader in the same rounds. After
:data:`FIRST_LOOK` rounds, and whenever their number has doubled, the worse half leaves the race, as in
Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization" (AISTATS 2016), and so
does every setting that certainly cannot win. The last setting is measured until its interval lies above
:data:`~.estimate.LEAST`, or certainly below a worthwhile gain. A judgement needs at least as many
rounds. The best of several settings looks good by chance more often than a single one; Bonferroni's correction widens
its interval for that.

A round counts only if other processes used about as many cores in all of its windows: a setting that was measured
beside another program, against a loader that was not, would win or lose by that. Everything follows from the windows of
a session, so the race continues where an earlier pass stopped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...session import LoaderSettings, Session, Window, settings_rung
from ..numbers.intervals import CONFIDENCE, Interval, plain
from ..numbers.paired_windows import LEAST, mean_rate, paired_ratio
from ..thresholds import WORTH
from .remedy import paired

#: Number of rounds before the first look, and the fewest that allow a judgement: one more than for a remedy, since the
#: settings of a race differ by less.
FIRST_LOOK = 3
#: Share of the machine's cores by which the use of other processes may differ between the windows of a round.
UNLIKE = 0.15


@dataclass(frozen=True)
class Arm:
    """One choice of loader settings and its result."""

    rung: str  # the name of its windows
    settings: LoaderSettings
    #: Speedup over the unmodified loader, paired round by round; None if no round has both.
    speedup: Interval | None = None
    rounds: int = 0  # number of rounds that have both
    rivals: int = 1  # number of settings that were measured
    why_not: str = ""  # why it could not be measured; empty if it could

    @property
    def known(self) -> bool:
        """True if it was measured for long enough to be judged."""
        return not self.why_not and self.rounds >= FIRST_LOOK

    @property
    def pays(self) -> bool:
        return self.known and self.speedup is not None and _low(self.speedup, self.rivals) > LEAST

    @property
    def hopeless(self) -> bool:
        """True if it certainly gains less than is worth a change."""
        return self.known and self.speedup is not None and self.speedup.high < WORTH

    @property
    def verdict(self) -> str:
        """``pays``, ``slower``, ``no gain`` or ``open``; without rounds ``failed`` or ``not tried``."""
        if self.speedup is None or self.why_not:
            return "failed" if self.why_not else "not tried"
        if self.pays:
            return "pays"
        if self.known and self.speedup.high < 1:
            return "slower"
        return "no gain" if self.hopeless else "open"


def _low(speedup: Interval, rivals: int) -> float:
    """Return the lower end of the interval, corrected for choosing the best of ``rivals`` settings."""
    quantile = statistics.NormalDist().inv_cdf
    tail = (1 - CONFIDENCE) / 2
    stretch = quantile(1 - tail / rivals) / quantile(1 - tail)
    return float(speedup.value * (speedup.low / speedup.value) ** stretch)


def arms(session: Session) -> list[Arm]:
    """Return all settings to try with their results, most promising first."""
    return [_arm(session, number) for number, _ in enumerate(_rungs(session), 1)]


def _arm(session: Session, number: int, rounds: Sequence[int] | None = None) -> Arm:
    """Return the result of the ``number``-th settings, judged only by ``rounds`` if given."""
    assert session.knobs is not None
    rung = settings_rung(number)
    unmodified, other = paired(session, "baseline", rung, _rounds(session) if rounds is None else rounds)
    return Arm(
        rung,
        session.knobs.tried[number - 1],
        paired_ratio(unmodified, other) if other else None,
        len(other),
        sum(1 for one in _rungs(session) if session.windows_of(one)),
        _why_not(session, rung),
    )


def _why_not(session: Session, rung: str) -> str:
    this = session.rungs.get(rung)
    return this.why_not if this is not None and not this.available else ""


def best(session: Session) -> Arm | None:
    """Return the recommended setting: the fastest that certainly pays, or a cheaper one that is about as fast.

    None if none certainly pays.
    """
    return next(iter(_ranked([arm for arm in arms(session) if arm.pays])), None)


def next_settings(session: Session) -> list[str]:
    """Return the rungs of the next round, the baseline and the settings still in the race; empty once it is decided."""
    rounds, look = _rounds(session), FIRST_LOOK
    running = [number for number, rung in enumerate(_rungs(session), 1) if not _why_not(session, rung)]
    while running and look <= len(rounds):
        seen = rounds[:look]
        stay = _stay(session, [_arm(session, number, seen) for number in running], seen)
        if look == len(rounds) and len(stay) == 1 and stay[0].pays:
            return []
        running = [number for number in running if settings_rung(number) in {arm.rung for arm in stay}]
        look *= 2
    return ["baseline", *map(settings_rung, running)] if running else []


def _rungs(session: Session) -> list[str]:
    tried = session.knobs.tried if session.knobs is not None else []
    return [settings_rung(number) for number in range(1, len(tried) + 1)]


def _rounds(session: Session) -> list[int]:
    """Return the rounds of the race: those with windows of the baseline and of other settings that can be compared."""
    baseline = {window.round: window for window in session.windows_of("baseline")}
    beside: dict[int, list[Window]] = {}
    for rung in _rungs(session):
        for window in session.windows_of(rung):
            beside.setdefault(window.round, []).append(window)
    return sorted(
        round_
        for round_ in beside.keys() & baseline.keys()
        if all(_comparable(session, baseline[round_], window) for window in beside[round_])
    )


def _comparable(session: Session, one: Window, other: Window) -> bool:
    """Return whether two windows are of one pass, and other processes used about as many cores in both."""
    if one.attempt != other.attempt:
        return False
    if not all({"cores_busy", "cores_used"} <= window.evidence.keys() for window in (one, other)):
        return True
    foreign = [window.evidence["cores_busy"] - window.evidence["cores_used"] for window in (one, other)]
    return abs(foreign[0] - foreign[1]) <= UNLIKE * (session.cores or math.inf)


def _stay(session: Session, running: list[Arm], rounds: Sequence[int]) -> list[Arm]:
    """Return the arms that stay in the race after a look: the better half, without those that cannot win."""
    order = _ranked([arm for arm in running if arm.speedup is not None and not arm.hopeless])
    stay = order[:1]
    for arm in order[1 : max(1, len(running) // 2)]:
        one, other = paired(session, order[0].rung, arm.rung, rounds)
        # It may win if it can be faster by a worthwhile gain or, if cheaper, slower by at most that.
        if one and paired_ratio(one, other).high > (1 / WORTH if _price(arm) < _price(order[0]) else WORTH):
            stay.append(arm)
    return stay


def _ranked(found: Sequence[Arm]) -> list[Arm]:
    """Return the arms by gain, but those about as fast as the fastest by price, cheapest first."""
    order = sorted(found, key=lambda arm: -_gain(arm))
    near = [arm for arm in order if _gain(order[0]) < WORTH * _gain(arm)]
    return sorted(near, key=_price) + order[len(near) :]


def _gain(arm: Arm) -> float:
    return arm.speedup.value if arm.speedup is not None else 0.0


def _price(arm: Arm) -> tuple[int, int, bool]:
    """Return the resources that an arm takes: processes, queued batches, pinned memory."""
    one = arm.settings
    return one.num_workers, one.prefetch_factor or 0, one.pin_memory


def rate(session: Session, rung: str) -> Interval | None:
    """Return the steps per second under a rung in the rounds of the race, or None if it has none."""
    rounds = _rounds(session)
    ms = [window.ms_per_step for window in session.windows_of(rung) if window.round in rounds]
    return mean_rate(ms).inverse(1000.0) if ms else None


def to_dict(session: Session) -> dict[str, Any] | None:
    """Return the published form; see :meth:`pipediag.analysis.Diagnosis.to_dict`."""
    if session.knobs is None:
        return None
    chosen = best(session)
    return {
        "why_not": session.knobs.why_not or None,
        "best": chosen.rung if chosen else None,
        "tried": [
            {
                "rung": arm.rung,
                "num_workers": arm.settings.num_workers,
                "prefetch_factor": arm.settings.prefetch_factor,
                "pin_memory": arm.settings.pin_memory,
                "startup_s": arm.settings.startup,
                "steps_per_s": plain(rate(session, arm.rung)),
                "measured_speedup": plain(arm.speedup),
                "rounds": arm.rounds,
                "verdict": arm.verdict,
                "why_not": arm.why_not or None,
            }
            for arm in arms(session)
        ],
    }
