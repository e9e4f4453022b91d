"""Log which calls of a training loop make the host wait for the device in every step, and their cost."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from ..session import SyncCall


@dataclass
class _Seen:
    """One call at one line."""

    line: str
    help: str
    steps: int = 0
    times: int = 0
    timed: int = 0
    seconds: float = 0.0


class SyncLog:
    """A log of synchronizing calls, step by step.

    Attributes:
        steps: number of finished steps.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._open: dict[tuple[str, str], list[float | None]] = {}

    def note(self, call: str, where: str, line: str, help: str, seconds: float | None = None) -> None:
        """Record one call in the open step; ``seconds`` is the host time spent in it, or None if unknown."""
        key = call, where
        self._seen.setdefault(key, _Seen(line, help))
        self._open.setdefault(key, []).append(seconds)

    def step(self) -> None:
        """Finish the step: later calls belong to the next one."""
        for key, calls in self._open.items():
            seen, timed = self._seen[key], [seconds for seconds in calls if seconds is not None]
            seen.steps += 1
            seen.times += len(calls)
            seen.timed += len(timed)
            seen.seconds += sum(timed)
        self._open.clear()
        self.steps += 1

    def report(self, least: float = 0.5) -> list[SyncCall]:
        """Return the calls that happen in (nearly) every step, the most expensive first, then those of unknown cost.

        Occasional calls, such as reading the loss every hundred steps, cost little and are left out, as are calls after
        the last :meth:`step`.

        Args:
            least: minimum share of the steps (0 to 1) in which a call happens.

        Raises:
            UsageError: no step has been finished.
        """
        if not self.steps:
            raise UsageError("no step was seen: call step() at the end of each training step, then ask for the report")
        found = [
            self._sync(call, where, seen)
            for (call, where), seen in self._seen.items()
            if seen.steps and seen.steps >= least * self.steps
        ]
        return sorted(found, key=_by_cost)

    def _sync(self, call: str, where: str, seen: _Seen) -> SyncCall:
        ms = 1000 * seen.seconds / self.steps if seen.timed == seen.times else None
        return SyncCall(call, where, seen.line, seen.times / self.steps, ms, seen.help)


def _by_cost(sync: SyncCall) -> tuple[float, float, str, str]:
    cost = -1.0 if sync.ms_per_step is None else sync.ms_per_step
    return -cost, -sync.per_step, sync.where, sync.call
