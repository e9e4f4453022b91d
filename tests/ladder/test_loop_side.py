"""Which workers may make batches while the loop works on its batch."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipediag.ladder.loop_side import Failure, LoopSide
from pipediag.ladder.loop_side import Loop as TrainingLoop
from pipediag.ladder.ranks.lockstep import Lockstep
from pipediag.ladder.workers.delivery import NO_COST, Delivery

from ..clock import Clock
from .simulated import steering


class Workers:
    """A source of batches that counts its pauses."""

    def __init__(self) -> None:
        self.pauses = 0
        self.loader = SimpleNamespace(num_workers=0)
        self.error: Exception | None = None

    def pause(self) -> None:
        self.pauses += 1

    def take(self) -> Delivery:
        if self.error is not None:
            raise self.error
        return Delivery(None, "baseline", True, NO_COST, 0)


class Loop:
    """A loop with its own workers and those of two other loaders."""

    def __init__(self) -> None:
        self.own, self.clone, self.remedied = self.sources = Workers(), Workers(), Workers()
        setting = SimpleNamespace(clock=Clock(), training=SimpleNamespace(drew=lambda ordinal: None))
        training_loop = TrainingLoop(self.own, 1, setting, torch.device("cpu"), 0, False)  # type: ignore[arg-type]
        self.loop_side = LoopSide(training_loop, steering(setting.clock, 1000), Lockstep())
        self.loop_side.serve("settings:1", self.clone)  # type: ignore[arg-type]
        self.loop_side.serve("remedied", self.remedied)  # type: ignore[arg-type]

    def drive(self, turn: Generator[Any, None, Any]) -> list[Any]:
        """Return what the loop gets meanwhile."""
        return list(turn)

    @property
    def pauses(self) -> tuple[int, ...]:
        """Number of pauses of each source since the last call."""
        found = tuple(source.pauses for source in self.sources)
        for source in self.sources:
            source.pauses = 0
        return found


@pytest.mark.parametrize(
    "rung, pauses", [("baseline", (0, 1, 1)), ("settings:1", (1, 0, 1)), ("remedied", (1, 1, 0)), (None, (1, 1, 1))]
)
def test_all_sources_but_one_stay_paused(rung: str | None, pauses: tuple[int, ...]) -> None:
    """A pause ends by itself, so it is renewed with every batch that the loop is handed, before it works on it."""
    loop = Loop()
    assert loop.drive(loop.loop_side.hand("batch")) == ["batch"] and loop.pauses == (0, 0, 0), "unasked"
    loop.loop_side.only(None)
    assert loop.pauses == (1, 1, 1)
    loop.loop_side.only(None if rung is None else loop.loop_side.source(rung))  # the latest choice counts
    assert loop.pauses == pauses
    for _ in range(3):
        handing = loop.loop_side.hand("batch")
        assert next(handing) == "batch" and loop.pauses == pauses
        assert loop.drive(handing) == [] and loop.pauses == (0, 0, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_source_resumes_when_a_batch_is_taken(fails: bool) -> None:
    """Otherwise the loop would wait for workers that it pauses."""
    loop = Loop()
    loop.loop_side.only(None)
    assert loop.pauses == (1, 1, 1)
    loop.own.error = ValueError("it fails") if fails else None
    got = loop.drive(loop.loop_side.take("baseline"))
    assert [type(one) for one in got] == ([Failure] if fails else [])
    loop.drive(loop.loop_side.hand("batch"))
    assert loop.pauses == (0, 1, 1)


def test_a_dismissed_source_is_no_longer_paused() -> None:
    loop = Loop()
    loop.loop_side.dismiss("remedied")
    loop.loop_side.only(None)
    assert loop.pauses == (1, 1, 0)
