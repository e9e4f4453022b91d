"""Recommend the best loader settings from the trials, with the measured speedup in place of a prediction."""

from __future__ import annotations

from collections.abc import Callable

from ...session import Loader, LoaderSettings, Session
from ...session.events import EDITED
from ...session.remedies import listed
from ..diagnosis import Recommendation
from ..thresholds import GATE
from ..trials.halving import Arm, arms, best, rate
from ..whatif import Change
from ..words import number, times
from .view import View

#: Test for each recommendation id whether settings make its change, given the present loader.
_CHANGES: dict[str, Callable[[LoaderSettings, Loader], bool]] = {
    "num-workers": lambda one, now: one.num_workers > now.num_workers,
    "no-workers": lambda one, now: not one.num_workers and now.num_workers > 0,
    "fewer-workers": lambda one, now: 0 < one.num_workers < now.num_workers,
    "prefetch-factor": lambda one, now: (
        bool(now.num_workers and one.num_workers) and one.prefetch_factor != now.prefetch_factor
    ),
    "pin-memory": lambda one, now: one.pin_memory != now.pin_memory,
}
#: The risk of each of these changes.
RISKS = {
    "num-workers": "every worker holds the dataset's objects and prefetch_factor batches in memory",
    "no-workers": "a batch that takes longer to make than usual holds the loop up",
    "fewer-workers": "fewer batches are in reserve when a few samples take longer",
    "prefetch-factor": "more batches lie in host memory",
    "pin-memory": "pinned memory is not swapped out, and filling it takes a thread of the training process",
}
#: Ids of the recommendations that trials decide.
IDS = (*_CHANGES,)


def settings(view: View) -> Recommendation | None:
    """Recommend the best of the measured settings, if they certainly pay."""
    arm = best(view.session)
    if arm is None:
        return None
    one, now = arm.settings, view.loader
    id = next(name for name, changes in _CHANGES.items() if changes(one, now))
    changed = _changed(one, now)
    alone = id in ("num-workers", "fewer-workers") and len(changed) == 1
    stages = {"no-workers": "ipc", "fewer-workers": "contention", "pin-memory": "transfer"}
    before, after = rate(view.session, "baseline"), rate(view.session, arm.rung)
    assert before is not None and after is not None, "what pays has rounds"
    keep = _keeping(view, arm)
    others = [
        f"{_written(other.settings, now)} {times(other.speedup)}"
        for other in arms(view.session)
        if other.rung != arm.rung and other.speedup is not None
    ]
    options = _written(one, now) + (", persistent_workers=True" if keep else "")
    if now.persistent_workers and not one.num_workers:
        options += ", persistent_workers=False"  # torch accepts True only with workers
    copies = f'; .to("{view.device}", non_blocking=True) in the loop may gain more' if one.pin_memory else ""
    return view.made(
        id,
        f"{_written(one, now)} instead of {', '.join(str(old) for old, _ in changed.values())}",
        stages.get(id, view.workers_stage),
        Change(workers=one.num_workers) if alone else None,
        [
            f"measured in {arm.rounds} rounds against the unmodified loader: {number(after.value)} steps/s instead of "
            f"{number(before.value)}",
            *([f"also measured: {listed(others)}"] if others else []),
            *keep,
        ],
        f"{options} {view.in_the_loader}{copies if 'pin_memory' in changed else ''}",
        RISKS[id],
        arm.speedup,
    )


def refuted(session: Session, id: str) -> bool:
    """Return whether trials speak against predicting a recommendation's gain.

    They do if its change was measured for long enough to be judged: then it is recommended as measured, or not at all.
    They also do if it was slower in the few rounds that there were, and if other settings were found best.
    """
    made = [(arm, arm.speedup) for arm in _of(session, id) if arm.speedup is not None]
    decided = bool(made) and best(session) is not None
    return decided or any(arm.known or speedup.value < 1 for arm, speedup in made)


def found_best(view: View, id: str) -> bool:
    """Return whether the best of the measured settings make this change, alone or with others."""
    arm = best(view.session)
    return arm is not None and _CHANGES[id](arm.settings, view.loader)


def predicted_only(view: View, id: str) -> list[str]:
    """Return notes for a prediction that no trial has decided."""
    knobs, made = view.session.knobs, _of(view.session, id)
    why = f": {knobs.why_not}" if knobs is not None and knobs.why_not else ""
    notes = []
    for arm in made:
        written = _written(arm.settings, view.loader)
        if arm.speedup is None or arm.why_not:
            notes.append(f"predicted; {written} could not be tried: {arm.why_not or 'there was no time for it'}")
        else:
            came = "without a decision" if arm.verdict in ("open", "pays") else "and does not pay"
            notes.append(f"predicted; {written} was tried {came}: {times(arm.speedup)}")
    return notes or [f"predicted, not tried{why}"]


def _of(session: Session, id: str) -> list[Arm]:
    now = session.loader or Loader()
    return [arm for arm in arms(session) if _CHANGES[id](arm.settings, now)]


def _changed(one: LoaderSettings, now: Loader) -> dict[str, tuple[int, int | None]]:
    """Return the keyword arguments that change, each with its old and its new value."""
    pairs: dict[str, tuple[int, int | None]] = {"num_workers": (now.num_workers, one.num_workers)}
    if now.num_workers and one.prefetch_factor != now.prefetch_factor:
        pairs["prefetch_factor"] = (now.prefetch_factor or 0, one.prefetch_factor)
    pairs["pin_memory"] = (now.pin_memory, one.pin_memory)
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def _written(one: LoaderSettings, now: Loader) -> str:
    return ", ".join(f"{name}={new}" for name, (_, new) in _changed(one, now).items())


def _keeping(view: View, arm: Arm) -> list[str]:
    """Return why to keep the workers between epochs: the cost of their start, which no steady window includes."""
    loader, startup, after = view.loader, arm.settings.startup, rate(view.session, arm.rung)
    if loader.persistent_workers or not arm.settings.num_workers or view.session.warned(EDITED):
        return []
    if not loader.epoch or startup is None or after is None:
        return []
    each = 1000.0 * startup / loader.epoch
    if each <= GATE * 1000.0 / after.value:
        return []
    return [
        f"its workers take {number(startup)} s until the first batch, {number(each)} ms per step in an epoch of "
        f"{loader.epoch} steps, unless they persist (computed: no window includes this time)"
    ]
