"""Compare two runs: which rungs and stages changed, and which changes exceed chance.

The runs are separate, so nothing is paired: rungs and stages are compared by their two independent intervals.
Differences below the instrument's resolution are never significant. The windows of one run do not show what varies from
run to run, such as other work on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..session import STAGE_OF_RUNG, Session, Warning_, ordered
from .diagnosis import Diagnosis, Stage
from .intervals import Interval, apart, plain
from .sentences import ends
from .thresholds import RESOLUTION
from .waterfall import by_stage

#: Loader settings whose change is reported.
_SETTINGS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "start_method")
#: What two runs must share to be comparable: the warning's code, what it is, where it is in a session, and advice.
_THE_SAME: tuple[tuple[str, str, Callable[[Session], Any], str], ...] = (
    ("other-device", "device", lambda s: s.device.get("name") or s.device.get("type"), "run both on the same device"),
    (
        "other-cores",
        "number of cores",
        lambda s: s.cores,
        "run both on the same machine, with the same affinity and quota",
    ),
    ("other-ranks", "number of ranks", lambda s: max(1, len(s.ranks)), "run both with the same number of processes"),
    (
        "other-batch-size",
        "batch size",
        lambda s: s.loader.batch_size if s.loader else None,
        "steps with another batch size do not compare",
    ),
    ("other-dataset", "dataset", lambda s: s.loader.dataset if s.loader else None, "compare runs over the same data"),
    ("other-script", "script", lambda s: s.script.argv[0] if s.script.argv else None, "compare runs of one script"),
)


@dataclass(frozen=True)
class RungChange:
    """A rung before and after, in steps per second, None if not measured; ``speedup`` is after divided by before."""

    rung: str
    before: Interval | None
    after: Interval | None
    speedup: Interval | None
    significant: bool


@dataclass(frozen=True)
class StageChange:
    """A stage's cost before and after, in milliseconds per step; None if the run has no such piece.

    ``alone`` is false if the stage was measured together with other stages on one side, so that the costs do not
    compare.
    """

    stage: str
    before: Interval | None
    after: Interval | None
    change: Interval | None
    significant: bool
    alone: bool = True


@dataclass
class Comparison:
    """A comparison of two runs, made by :func:`compare`.

    ``settings`` holds changed settings as (name, before, after).
    """

    before: Diagnosis
    after: Diagnosis
    rungs: list[RungChange]
    stages: list[StageChange]
    settings: list[tuple[str, Any, Any]] = field(default_factory=list)
    warnings: list[Warning_] = field(default_factory=list)

    @property
    def loop(self) -> RungChange | None:
        """The change of the unmodified loop, or None if one side lacks it."""
        return next((one for one in self.rungs if one.rung == "baseline" and one.speedup is not None), None)

    def certainly_slower(self, share: float) -> bool:
        """Return whether the loop is significantly slower, with the speedup's whole interval below ``1 - share``."""
        loop = self.loop
        return loop is not None and loop.speedup is not None and loop.significant and loop.speedup.high < 1 - share

    @property
    def sentence(self) -> str:
        loop = self.loop
        if loop is None or loop.speedup is None:
            return "The two runs cannot be compared: one of them has no baseline."
        gain = loop.speedup
        if not loop.significant:
            return f"The loop is neither faster nor slower, as far as can be told: {_percent(gain)}."
        return f"The loop is {'faster' if gain.value > 1 else 'slower'}: {_percent(gain)}."

    def to_dict(self) -> dict[str, Any]:
        return {
            "sentence": self.sentence,
            "verdict": {"before": self.before.verdict.bottleneck, "after": self.after.verdict.bottleneck},
            "starved": {"before": plain(self.before.verdict.starved), "after": plain(self.after.verdict.starved)},
            "rungs": [_published(one) for one in self.rungs],
            "stages": [_published(one) for one in self.stages],
            "settings": [{"name": name, "before": old, "after": new} for name, old, new in self.settings],
            "warnings": [asdict(warning) for warning in self.warnings],
        }


def compare(before: Diagnosis, after: Diagnosis) -> Comparison:
    return Comparison(
        before, after, _rungs(before, after), _stages(before, after), _settings(before, after), _warnings(before, after)
    )


def _rungs(before: Diagnosis, after: Diagnosis) -> list[RungChange]:
    names = {w.rung for side in (before, after) for w in side.session.windows if side.ladder.has(w.rung)}
    return [_rung(name, before, after) for name in ordered(names)]


def _rung(name: str, before: Diagnosis, after: Diagnosis) -> RungChange:
    was, now = (s.ladder.ms(name).inverse(1000.0) if s.ladder.has(name) else None for s in (before, after))
    if was is None or now is None:
        return RungChange(name, was, now, None, False)
    speedup = apart(was, now)
    return RungChange(name, was, now, speedup, speedup.low > 1 + RESOLUTION or speedup.high < 1 - RESOLUTION)


def _stages(before: Diagnosis, after: Diagnosis) -> list[StageChange]:
    costs = [{p.stage: p for p in by_stage(side.ladder, side.waterfall)} for side in (before, after)]
    resolution = RESOLUTION * max((s.ladder.ms("baseline").value for s in (before, after) if s.waterfall), default=0.0)
    found = sorted({*costs[0], *costs[1]}, key=_ORDER.index)
    return [_stage(name, costs[0].get(name), costs[1].get(name), resolution) for name in found]


_ORDER = [*STAGE_OF_RUNG.values(), "contention"]


def _stage(name: str, old: Stage | None, new: Stage | None, resolution: float) -> StageChange:
    if old is None or new is None:
        return StageChange(name, old.ms if old else None, new.ms if new else None, None, False)
    if old.covers != new.covers:
        return StageChange(name, old.ms, new.ms, None, False, alone=False)
    change = new.ms.minus(old.ms)
    return StageChange(name, old.ms, new.ms, change, change.low > resolution or change.high < -resolution)


def _settings(before: Diagnosis, after: Diagnosis) -> list[tuple[str, Any, Any]]:
    old, new = before.session.loader, after.session.loader
    found: list[tuple[str, Any, Any]] = []
    if old is not None and new is not None:
        found = [(name, getattr(old, name), getattr(new, name)) for name in _SETTINGS]
        found.append(("transform", old.transform and old.transform.name, new.transform and new.transform.name))
    for name in ("torch", "python"):
        found.append((name, before.session.environment.get(name), after.session.environment.get(name)))
    found.append(("arguments", " ".join(before.session.script.argv[1:]), " ".join(after.session.script.argv[1:])))
    return [(name, was, now) for name, was, now in found if was != now]


def _warnings(before: Diagnosis, after: Diagnosis) -> list[Warning_]:
    """Return warnings about differences that make the two runs incomparable."""
    found = []
    for code, what, fact, help in _THE_SAME:
        old, new = fact(before.session), fact(after.session)
        if old is not None and new is not None and old != new:
            found.append(Warning_(code, f"not the same {what}: {old} before, {new} after", help))
    for name, side in (("before", before), ("after", after)):
        if side.partial:
            found.append(Warning_("partial", f"the run {name} is PARTIAL", "give it more time: --budget SECONDS"))
    return found


def _percent(gain: Interval) -> str:
    between = ends(gain, _more)
    return f"{_more(gain.value)} % steps a second{between and f' ({between})'}"


def _more(speedup: float) -> str:
    return f"{100 * (speedup - 1):+.0f}"


def _published(change: RungChange | StageChange) -> dict[str, Any]:
    return {name: plain(value) if isinstance(value, Interval) else value for name, value in vars(change).items()}
