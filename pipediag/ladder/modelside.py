"""The model's side of a step, looked at once the ladder is known: the loop is fed batches that lie on the device.

Nothing here is timed for the ladder. Each look says beforehand how long it may take, since the budget may be spent.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ..measure.clock import Clock
from ..measure.device import Device
from ..session import Profile, Session
from .caches import BatchCache
from .frozen import frozen_prefix
from .loop_side import LoopSide, Turn
from .plan import Plan
from .profiling import STEPS, WARM_UP, profile_steps

Send = Callable[[str, dict[str, Any]], None]

#: The longest that trying a frozen prefix may take, in seconds and as a part of the budget, and the least.
_PREFIX_SECONDS, _PREFIX_SHARE, _PREFIX_LEAST = 10.0, 0.1, 2.0
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
        seconds = max(_PREFIX_LEAST, min(_PREFIX_SECONDS, _PREFIX_SHARE * plan.budget))
        send("looking", {"at": "", "seconds": 3 * seconds})
        prefix = yield from frozen_prefix(loop_side, cache, device.torch_device, step_ms, seconds)
        if prefix is not None:
            send("prefix", asdict(prefix))


def _to_profile(plan: Plan, session: Session) -> bool:
    return bool(plan.profile) and session.profile is None
