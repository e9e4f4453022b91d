"""Examine the model's side of a step, after the ladder: profile it and look for frozen modules.

The loop is fed cached batches on the device. Nothing here is timed for the ladder. Each examination first announces how
long it may take, since the budget may be spent.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict

from ...session import Profile
from ..loop_side import LoopSide, Setting, Turn
from .frozen import LEAST_STEPS, MOST_STEPS, TRIES, frozen_prefix
from .profiling import STEPS, WARM_UP, profile_steps

#: Maximum share of the budget for watching steps, which matters if they are long, and seconds allowed in addition.
_PREFIX_SHARE, _PREFIX_BESIDE = 0.1, 2.0
#: Seconds for the profiler to start and to write, and the factor by which it may slow down a step.
_PROFILER_SECONDS, _SLOWER = 30.0, 10.0


def wanted(setting: Setting) -> bool:
    """Return whether anything is left to examine."""
    return bool(setting.session.windows) and (setting.session.prefix is None or _to_profile(setting))


def why_not(setting: Setting) -> str:
    """Return why the loop cannot be fed from the device, or "". If a profile was requested, it gets this reason."""
    rung = setting.session.rungs.get("device")
    why = ""
    if rung is not None and not rung.available:
        why = rung.why_not
    elif not setting.session.windows_of("device"):
        why = "it was not measured"
    if why and _to_profile(setting):
        setting.send("profile", asdict(Profile(why_not=f"it needs steps on batches cached on the device: {why}")))
    return why


def look_at_model(loop_side: LoopSide) -> Turn[None]:
    """Record a profile if one was requested, and look for frozen modules."""
    setting, session, plan = loop_side.setting, loop_side.setting.session, loop_side.setting.plan
    step_ms = statistics.median(window.ms_per_step for window in session.windows_of("device"))
    if _to_profile(setting):
        steps = 3 * (WARM_UP + STEPS) * _SLOWER * step_ms / 1000
        setting.send("looking", {"at": f"{STEPS} steps with torch's profiler", "seconds": _PROFILER_SECONDS + steps})
        found = yield from profile_steps(loop_side, step_ms, plan.profile)
        setting.send("profile", asdict(found))
    if session.prefix is None:
        steps = max(LEAST_STEPS, min(MOST_STEPS, int(1000 * _PREFIX_SHARE * plan.budget / step_ms)))
        # An epoch's end may take another step before each watched one.
        setting.send("looking", {"at": "", "seconds": _PREFIX_BESIDE + 2 * TRIES * steps * step_ms / 1000})
        prefix = yield from frozen_prefix(loop_side, step_ms, steps)
        if prefix is not None:
            setting.send("prefix", asdict(prefix))


def _to_profile(setting: Setting) -> bool:
    return bool(setting.plan.profile) and setting.session.profile is None
