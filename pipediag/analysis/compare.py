"""Compare two runs: what changed in the script's code, how much faster its loop is, and what is certain of that.

A stage has changed only if its own time did (:mod:`.own_times`) beyond what two analyses of one script differ: at least
two windows on each side, no other load on the machine, and, for the parts of a worker's time, another share of it too,
since a slower host makes all of them slower. What a stage costs of a *step* may change although its code did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..session import Session, Warning_, ordered
from .diagnosis import Diagnosis
from .numbers.intervals import Interval, apart, exactly, plain, total
from .numbers.ladder import LadderView
from .numbers.own_times import OwnTime, OwnTimes, loop_times, own_times, pace
from .thresholds import GATE, RESOLUTION
from .words import ends

#: Windows of the unmodified loop that each side needs before anything is called certain.
_ENOUGH = 2
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
    """A rung before and after, in steps per second, None if not measured."""

    rung: str
    before: Interval | None
    after: Interval | None
    speedup: Interval | None  # after divided by before
    significant: bool


@dataclass(frozen=True)
class StageChange:
    """A stage's own time before and after, in milliseconds; None if the run does not tell it."""

    stage: str  # ``sample`` is all that a worker does for one
    before: Interval | None
    after: Interval | None
    change: Interval | None
    significant: bool
    per: str  # a worker's time for a ``sample``, or the training process's for a ``step``
    name: str = ""  # of a transform
    where: str = ""


@dataclass
class Comparison:
    """A comparison of two runs, made by :func:`compare`."""

    before: Diagnosis
    after: Diagnosis
    rungs: list[RungChange]
    of_the_workers: list[StageChange]
    of_the_loop: list[StageChange]
    #: The change of the unmodified loop with what it pays between its steps, such as starting the workers for every
    #: epoch, as each run's own report counts it; None if one side lacks it.
    loop: RungChange | None = None
    settings: list[tuple[str, Any, Any]] = field(default_factory=list)  # changed ones as (name, before, after)
    warnings: list[Warning_] = field(default_factory=list)

    @property
    def stages(self) -> list[StageChange]:
        return [*self.of_the_workers, *self.of_the_loop]

    @property
    def changed(self) -> list[StageChange]:
        """The stages that certainly changed."""
        return [one for one in self.stages if one.significant]

    def certainly_slower(self, share: float) -> bool:
        """Return whether the loop is significantly slower, with the speedup's whole interval below ``1 - share``."""
        loop = self.loop
        return loop is not None and loop.speedup is not None and loop.significant and loop.speedup.high < 1 - share

    @property
    def answer(self) -> str:
        """Return what happened to the loop: faster, slower, maybe faster, maybe slower, or alike; empty if unknown."""
        loop = self.loop
        if loop is None or loop.speedup is None:
            return ""
        word = "faster" if loop.speedup.value > 1 else "slower"
        if loop.significant:
            return word
        return f"maybe {word}" if abs(math.log(loop.speedup.value)) > -math.log(1 - GATE) else "alike"

    @property
    def sentence(self) -> str:
        loop = self.loop
        if loop is None or loop.speedup is None:
            return "The two runs cannot be compared: one of them has no baseline."
        if self.answer == "alike":
            return f"The loop is as fast as before, as far as can be told: {_percent(loop.speedup)}."
        return f"The loop is {self.answer}: {_percent(loop.speedup)}."

    def to_dict(self) -> dict[str, Any]:
        return {
            "sentence": self.sentence,
            "verdict": {"before": self.before.verdict.bottleneck, "after": self.after.verdict.bottleneck},
            "starved": {"before": plain(self.before.verdict.starved), "after": plain(self.after.verdict.starved)},
            "loop": _published(self.loop) if self.loop is not None else None,
            "rungs": [_published(one) for one in self.rungs],
            "stages": [_published(one) for one in self.stages],
            "waits_ms": {"before": plain(waits(self.before.ladder)), "after": plain(waits(self.after.ladder))},
            "settings": [{"name": name, "before": old, "after": new} for name, old, new in self.settings],
            "warnings": [asdict(warning) for warning in self.warnings],
        }


def compare(before: Diagnosis, after: Diagnosis) -> Comparison:
    warnings = _warnings(before, after)
    quiet = not any(warning.code == "other-load" for warning in warnings)
    enough = all(side.ladder.windows("baseline") >= _ENOUGH for side in (before, after))
    names = ordered({w.rung for side in (before, after) for w in side.session.windows if side.ladder.has(w.rung)})
    return Comparison(
        before,
        after,
        [_rung(name, before, after, quiet) for name in names],
        _of_the_workers(before, after, enough),
        _of_the_loop(before, after, enough and quiet),
        _rung("baseline", before, after, quiet, whole=True) if "baseline" in names else None,
        _settings(before, after),
        warnings,
    )


def _rung(name: str, before: Diagnosis, after: Diagnosis, quiet: bool, whole: bool = False) -> RungChange:
    """Return the change of the rate under a rung; with ``whole``, of steps with what is paid between them."""

    def rate(side: Diagnosis, ms: Callable[[LadderView, str], Interval]) -> Interval | None:
        between = [cost.ms for cost in side.between_steps] if whole else []
        return total([ms(side.ladder, name), *between]).inverse(1000.0) if side.ladder.has(name) else None

    was, now = (rate(side, LadderView.ms) for side in (before, after))
    slow, fast = (rate(side, pace) for side in (before, after))
    if slow is None or fast is None:
        return RungChange(name, was, now, None, False)
    speedup = apart(slow, fast)
    certain = quiet and min(side.ladder.windows(name) for side in (before, after)) >= _ENOUGH
    return RungChange(name, was, now, speedup, certain and _beyond(speedup.shifted(-1.0), RESOLUTION))


def _beyond(change: Interval, resolution: float) -> bool:
    return change.low > resolution or change.high < -resolution


def _of_the_workers(before: Diagnosis, after: Diagnosis, enough: bool) -> list[StageChange]:
    """Return the changes of a worker's own time for a sample, by stage; of all of it if no stage can be named."""
    was, now = own_times(before.ladder), own_times(after.ladder)
    if was is None or now is None:
        return []
    certain = enough and was.counted and now.counted
    # With more workers on the same cores, the same code takes each longer.
    like, other_like = ((side.session.workers, side.session.cores) for side in (before, after))
    resolution = RESOLUTION * max(was.whole.value, now.whole.value)
    old, new = ({part.key: part for part in parts} for parts in _matching(was, now))
    found = []
    for key in sorted({**old, **new}, key=lambda key: _ORDER.index(key[0])):
        nothing = OwnTime(key[0], exactly(0.0), exactly(0.0), key[1])
        one, other = old.get(key, nothing), new.get(key, nothing)
        change, share = other.ms.minus(one.ms), other.share.minus(one.share)
        changed = certain and _beyond(change, resolution) and _beyond(share, 0.0)
        place = (other if key in new else one).where
        found.append(StageChange(key[0], one.ms, other.ms, change, changed, "sample", key[1], place))
    change = now.whole.minus(was.whole)
    all_of_it = certain and like == other_like and _beyond(change, resolution)
    all_of_it = all_of_it and not any(one.significant for one in found)
    return [*found, StageChange("sample", was.whole, now.whole, change, all_of_it, "sample")]


_ORDER = ("load", "transform", "collate")


def _matching(was: OwnTimes, now: OwnTimes) -> tuple[list[OwnTime], list[OwnTime]]:
    """Return the parts of both sides that compare: all transforms as one if they differ and a side has them so.

    There are none if a side was not probed, or if it found no transforms where the other did: they are part of loading.
    """
    keys, later = ({part.key for part in side.parts} for side in (was, now))
    if keys and later and (keys == later or (was.split and now.split)):
        return was.parts, now.parts
    if all("transform" in {stage for stage, *_ in found} for found in (keys, later)):
        return was.joined(), now.joined()
    return [], []


def _of_the_loop(before: Diagnosis, after: Diagnosis, certain: bool) -> list[StageChange]:
    """Return the changes of the training process's own time for a step, batches being ready."""
    was, now = loop_times(before.ladder), loop_times(after.ladder)
    found = []
    for stage in dict.fromkeys([*was, *now]):
        if stage not in was or stage not in now:
            old, new = (side[stage][0] if stage in side else None for side in (was, now))
            found.append(StageChange(stage, old, new, None, False, "step"))
            continue
        (one, few), (other, fewer) = was[stage], now[stage]
        change, resolution = other.minus(one), RESOLUTION * max(was["compute"][0].value, now["compute"][0].value)
        changed = certain and min(few, fewer) >= _ENOUGH and _beyond(change, resolution)
        found.append(StageChange(stage, one, other, change, changed, "step"))
    return found


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
    busy = [any(warning.code == "foreign-load" for warning in side.warnings) for side in (before, after)]
    if any(busy):
        when = "both runs" if all(busy) else f"the run {'before' if busy[0] else 'after'}"
        help = "compare runs on a quiet machine; a worker's own times compare all the same"
        found.append(Warning_("other-load", f"other processes used the cores during {when}", help))
    for name, side in (("before", before), ("after", after)):
        if side.partial:
            found.append(
                Warning_("partial", f"not all stages were measured in the run {name}", "give it a longer budget")
            )
    return found


def waits(ladder: LadderView) -> Interval | None:
    """Return the milliseconds of a step in which the loop waits for batches, or None if unknown.

    That follows from the times of both sides: it changes although only one of them did.
    """
    share = ladder.waited("baseline") if ladder.has("baseline") else None
    return share.times(ladder.ms("baseline").value) if share is not None else None


def _percent(gain: Interval) -> str:
    between = ends(gain, _more)
    return f"{_more(gain.value)} % steps a second{between and f' ({between})'}"


def _more(speedup: float) -> str:
    return f"{100 * (speedup - 1):+.0f}"


def _published(change: RungChange | StageChange) -> dict[str, Any]:
    return {name: plain(value) if isinstance(value, Interval) else value for name, value in vars(change).items()}
