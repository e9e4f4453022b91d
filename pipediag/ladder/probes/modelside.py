"""Examine the model's side of a step, after the ladder: profile it and look for frozen modules.

The loop is fed cached batches on the device. Nothing here is timed for the ladder. Each examination first announces how
long it may take, since the budget may be spent.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...measure import syncs
from ...session import Profile, Syncs
from ...usercode import tree
from ..loop_side import LoopSide, Turn
from .frozen import LEAST_STEPS, MOST_STEPS, TRIES, frozen_prefix
from .profiling import STEPS, WARM_UP, profile_steps

if TYPE_CHECKING:
    from ..measurement import Measurement

#: Maximum share of the budget for watching steps, which matters if they are long, and seconds allowed in addition.
_PREFIX_SHARE, _PREFIX_BESIDE = 0.1, 2.0
#: Seconds for the profiler to start and to write, and the factor by which it may slow down a step.
_PROFILER_SECONDS, _SLOWER = 30.0, 10.0


def wanted(setting: Measurement) -> bool:
    return bool(setting.session.windows) and (setting.session.prefix is None or _to_profile(setting))


def why_not(setting: Measurement) -> str:
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


def _to_profile(setting: Measurement) -> bool:
    return bool(setting.plan.profile) and setting.session.profile is None


#: Rounds over the batches; the first is untimed.
_REPEATS = 3
#: Minimum number of batches to compare.
_LEAST_BATCHES = 4


def batch_steps(loop_side: LoopSide, pace: float, seconds: float) -> Turn[list[dict[str, Any]]]:
    """Time steps on every batch cached on the device, on as many as fit into ``seconds`` at ``pace`` seconds per step.

    The device is synchronized around each step, unlike in windows: compare these figures only with each other.
    """
    cache, device, clock = loop_side.cache("device"), loop_side.device, loop_side.clock
    count = min(len(cache), int(seconds / (_REPEATS * max(pace, 1e-6))))
    if count < _LEAST_BATCHES:
        return []
    times: list[list[float]] = [[] for _ in range(count)]
    # Steps on one batch do not follow each other: a machine that changes its speed would make batches differ.
    for repeat in range(_REPEATS):
        for number in range(count):
            device.synchronize()
            began = clock.now()
            back = yield from loop_side.hand(cache.at(number))
            device.synchronize()
            if back and repeat:
                times[number].append(1000.0 * (clock.now() - began))
    return [{"nbytes": cache.nbytes(number), "ms": ms} for number, ms in enumerate(times) if ms]


#: Maximum and minimum steps watched, and their maximum seconds unless fewer than the minimum remain. The steps must
#: distinguish a loop that reads its loss every ten steps from one that reads it in each.
_MOST_WATCHED, _LEAST_WATCHED, _WATCHED_SECONDS = 16, 4, 3.0


def watch_syncs(loop_side: LoopSide, pace: float) -> Turn[Syncs]:
    """Hand the loop copies of cached host batches, and record which of its calls wait for the device.

    ``pace`` is seconds per step. Batches come from host memory, so that the loop copies them as in training. Only CUDA
    reports waits: on any other device nothing is watched.
    """
    kind = loop_side.device.torch_device.type
    if kind != "cuda":
        return Syncs(unwatched=f"only CUDA reports calls that wait for it, and training runs on {kind}")
    steps = max(_LEAST_WATCHED, min(_MOST_WATCHED, int(_WATCHED_SECONDS / max(pace, 1e-6))))
    cache = loop_side.cache("host")
    with syncs.watch() as log:
        for number in range(steps):
            yield from loop_side.hand(tree.clone_pinned(cache.at(number)))
            log.step()
    return Syncs(log.steps, log.report())
