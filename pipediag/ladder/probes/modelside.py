"""The model's side of a step, looked at once the ladder is known: the loop is fed batches that lie on the device.

Nothing here is timed for the ladder. Each look says beforehand how long it may take, since the budget may be spent.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ...measure.clock import Clock
from ...measure.device import Device
from ...session import Profile, Session
from ..caches import BatchCache
from ..loop_side import LoopSide, Turn
from ..plan import Plan
from .frozen import LEAST_STEPS, MOST_STEPS, TRIES, frozen_prefix
from .profiling import STEPS, WARM_UP, profile_steps

Send = Callable[[str, dict[str, Any]], None]

#: The part of the budget that watching for a frozen prefix may take, where steps are so long that it counts, and the
#: seconds that are allowed for beside the steps.
_PREFIX_SHARE, _PREFIX_BESIDE = 0.1, 2.0
#: Seconds that a profiler may take to make itself ready and to write, and by how much it slows a step.
_PROFILER_SECONDS, _SLOWER = 30.0, 10.0


def wanted(plan: Plan, session: Session) -> bool:
    """Whether something is left to be looked at."""
    return bool(session.windows) and (session.prefix is None or _to_profile(plan, session))


def why_not(plan: Plan, session: Session, send: Send) -> str:
    """Why the loop cannot be fed from the device; empty where it can. Tells it to whoever asked for a profile."""
    rung = session.rungs.get("device")
    why = ""
    if rung is not None and not rung.available:
        why = rung.why_not
    elif not session.windows_of("device"):
        why = "it was not measured"
    if why and _to_profile(plan, session):
        send("profile", asdict(Profile(why_not=f"the rung device, whose steps it is made of, is not there: {why}")))
    return why


def look_at_model(
    loop_side: LoopSide, cache: BatchCache, device: Device, clock: Clock, plan: Plan, session: Session, send: Send
) -> Turn:
    """Record a profile where one is asked for, and look for a frozen part of the model."""
    step_ms = statistics.median(window.ms_per_step for window in session.windows_of("device"))
    if _to_profile(plan, session):
        steps = 3 * (WARM_UP + STEPS) * _SLOWER * step_ms / 1000
        send("looking", {"at": f"{STEPS} steps with torch's profiler", "seconds": _PROFILER_SECONDS + steps})
        found = yield from profile_steps(loop_side, cache, device, clock, step_ms, plan.profile)
        send("profile", asdict(found))
    if session.prefix is None:
        steps = max(LEAST_STEPS, min(MOST_STEPS, int(1000 * _PREFIX_SHARE * plan.budget / step_ms)))
        # Before each step that is watched another may be handed out, where an epoch has ended.
        send("looking", {"at": "", "seconds": _PREFIX_BESIDE + 2 * TRIES * steps * step_ms / 1000})
        prefix = yield from frozen_prefix(loop_side, cache, device, clock, step_ms, steps)
        if prefix is not None:
            send("prefix", asdict(prefix))


def _to_profile(plan: Plan, session: Session) -> bool:
    return bool(plan.profile) and session.profile is None
