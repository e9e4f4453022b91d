"""Run a training script as ``__main__`` and time its loop in turns, plain and fed from kept batches.

``python native.py SCRIPT ARGUMENTS``, with a JSON object in the environment (:class:`Asked`). It uses no code of
pipediag. Every turn begins with a new epoch and ends it, so that a turn on kept batches has no workers beside it, and
the starts of short epochs count in a plain one.
"""

from __future__ import annotations

import itertools
import json
import os
import runpy
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "WORD_NATIVE"
PLAIN, CACHED = "plain", "cached"
#: Batches kept for the turns without a loader.
KEPT = 8
#: Seconds of a turn before its timing begins, and whole rounds of the workers.
SETTLE_SECONDS, SETTLE_ROUNDS = 1.5, 3


@dataclass(frozen=True)
class Asked:
    """What to time.

    Attributes:
        out: the file for the result, a list of one object per turn: ``turn``, ``ms`` per step, ``waited_ms`` of it in
            ``next()``, ``cpu_ms`` of the training process, ``steps``.
        turns: ``plain`` or ``cached``, in this order; the first is plain.
        seconds: of each turn.
        whole_epochs: true to time from the beginning of an epoch to that of another.
        device: where the kept batches lie.
    """

    out: str
    turns: tuple[str, ...]
    seconds: float
    whole_epochs: bool
    device: str


class Turns:
    """The turns of a loop, by the batches that it draws."""

    def __init__(self, asked: Asked, iterate: Any) -> None:
        self.asked, self.iterate = asked, iterate
        self.left = [*asked.turns]
        self.kept: list[Any] = []
        self.results: list[dict[str, Any]] = []
        self._enter()

    def _enter(self) -> None:
        self.began, self.drawn, self.waited, self.cpu = time.perf_counter(), 0, 0.0, 0.0
        self.open: float | None = None

    def feed(self, loader: Any) -> Iterator[Any]:
        """Yield an epoch's batches, and end it early if the turn ends; in place of the loader's own iterator."""
        if self.asked.whole_epochs:
            self._mark(loader)
        cached, asked_at = self.left[0] == CACHED, time.perf_counter()
        batches = itertools.islice(itertools.cycle(self.kept), len(loader)) if cached else self.iterate(loader)
        for batch in batches:
            self.waited += time.perf_counter() - asked_at
            if not cached and len(self.kept) < KEPT:
                self.kept.append(_moved(batch, self.asked.device))
            if not self.asked.whole_epochs and self._mark(loader):
                return
            self.drawn += 1
            yield batch
            asked_at = time.perf_counter()
        self.waited += time.perf_counter() - asked_at  # the workers have ended

    def _mark(self, loader: Any) -> bool:
        """Begin the timing of the turn, or end the turn, if it is time; return whether it ended."""
        now, rounds = time.perf_counter(), max(1, loader.num_workers)
        if self.open is None:
            enough = self.drawn >= max(KEPT, SETTLE_ROUNDS * rounds) and now - self.began >= SETTLE_SECONDS
            if enough or (now - self.began > 4 * self.asked.seconds and len(self.kept) == KEPT):
                _synchronize()
                self.open, self.drawn, self.waited = time.perf_counter(), 0, 0.0
                self.cpu = time.process_time()
            return False
        whole = self.asked.whole_epochs or self.drawn % rounds == 0
        if now - self.open < self.asked.seconds or not whole:
            return False
        _synchronize()
        took = {
            "ms": time.perf_counter() - self.open,
            "waited_ms": self.waited,
            "cpu_ms": time.process_time() - self.cpu,
        }
        per_step = {name: round(1000 * seconds / self.drawn, 3) for name, seconds in took.items()}
        self.results.append({"turn": self.left.pop(0), **per_step, "steps": self.drawn})
        Path(self.asked.out).write_text(json.dumps(self.results))
        if not self.left:
            sys.exit()
        self._enter()
        return True


def _moved(value: Any, device: str) -> Any:
    """Return a copy of a batch on a device."""
    if isinstance(value, (list, tuple)):
        return [_moved(item, device) for item in value]
    return value.to(device, copy=True)


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    asked = json.loads(os.environ.pop(VARIABLE))
    script, sys.argv = sys.argv[1], sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    from torch.utils.data import DataLoader

    turns = Turns(Asked(**asked), DataLoader.__iter__)
    DataLoader.__iter__ = lambda loader: turns.feed(loader)  # type: ignore[method-assign]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
