"""Give every window the same share of rare long steps: that of all steps seen. A single window meets them by chance.

Usual steps are compared between windows that are neighbours in time. Rare ones, such as where a file of samples is
opened or the training saves a checkpoint, are counted over everything that was timed: see
:mod:`pipediag.measure.rare_steps` for which they are, and :data:`.LONGER` for the window that meets most of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from ...session import CACHED, PLAIN, Account, Window


class Rare(NamedTuple):
    """Milliseconds that rare steps add to a mean step, and the standard deviation of that figure."""

    ms: float
    sd: float


class RareSteps:
    """The rare steps of a session's ``windows``."""

    def __init__(self, windows: Iterable[Window]) -> None:
        timed = [window for window in windows if window.rung in (*PLAIN, *CACHED)]
        #: What the loop as it is waits longer for a batch in them.
        self.waits = _pooled([window for window in timed if window.rung in PLAIN], "wait")
        #: What they take longer besides. It does not depend on what feeds the loop.
        self.trains = _pooled(timed, "train")

    def spread(self, window: Window) -> Window:
        """Return the window as if it had met as many rare steps as there are on average."""
        seen = window.evidence
        waited = (self.waits.ms if window.rung in PLAIN else 0.0) - seen.get("rare_wait_ms", 0.0)
        trained = self.trains.ms - seen.get("rare_train_ms", 0.0)
        if not waited and not trained:
            return window
        waits = {str(key): max(0.0, seen[key] + waited) for key in ("wait_ms", "next_ms") if key in seen}
        seconds = window.seconds + window.steps * (waited + trained) / 1000
        account = window.account and _with(window.account, waited, trained)
        return replace(window, seconds=seconds, evidence={**seen, **waits}, account=account)


def with_pause(window: Window) -> Window:
    """Return the window with the pause that was cut out of it, as one of its rare steps."""
    account, seen = window.account, dict(window.evidence)
    if account is None or not account.left_out_s:
        return window
    ms = 1000 * account.left_out_s
    seen["rare_train_ms"] = seen.get("rare_train_ms", 0.0) + ms / window.steps
    seen["rare_train_root"] = math.hypot(seen.get("rare_train_root", 0.0), ms)
    account = replace(_with(account, 0.0, ms / window.steps), left_out_s=0.0)
    return replace(window, seconds=window.seconds + ms / 1000, evidence=seen, account=account)


def _pooled(windows: Iterable[Window], part: str) -> Rare:
    """Return what one part of the rare steps adds to a mean step, over all steps of the windows.

    The number of rare steps is taken for a Poisson variable, so the variance of their sum is the sum of their squares.
    """
    total = squares = steps = 0.0
    for window in windows:
        total += window.steps * window.evidence.get(f"rare_{part}_ms", 0.0)
        squares += window.evidence.get(f"rare_{part}_root", 0.0) ** 2
        steps += window.steps
    return Rare(total / steps, math.sqrt(squares) / steps) if steps else Rare(0.0, 0.0)


def _with(account: Account, waited: float, trained: float) -> Account:
    """Return an account of which the step waits and trains longer, by milliseconds that may be negative.

    Whether the thread computed in rare steps is not known: they count as blocked as far as it was.
    """
    times = dict(vars(account))
    for blocked, more in (("waits_ms", waited), ("other_ms", trained)):
        times[blocked], rest = max(0.0, times[blocked] + more), min(0.0, times[blocked] + more)
        times["cpu_ms"] = max(0.0, times["cpu_ms"] + rest)
    return replace(account, **times)
