"""When the fetching thread launches a batch, beside a loop that launches its own work."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipediag.streams import executor
from pipediag.streams.handover import Ready
from tests.clock import Clock


class Passed:
    """Event that the device has passed."""

    def synchronize(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(executor.time, "monotonic", clock.now)
    return clock


def due(clock: Clock, launched: int, period: float) -> Any:
    """Return the state after ``launched`` batches and two requests ``period`` seconds apart; one step has ended."""
    made = executor._Due(3, torch.device("cpu"))
    made._measured = True
    for _ in range(launched):
        made.launched(Ready([]))
    for _ in range(2):
        made.finished(Passed(), clock.now())
        clock.sleep(period)
    clock.sleep(-period)
    made.over()
    return made


@pytest.mark.parametrize(("period", "pause"), [(0.08, 0.04), (0.01, 0.005), (3.0, 0.05)])
def test_a_loop_is_left_alone_for_half_a_step(clock: Clock, period: float, pause: float) -> None:
    assert due(clock, 3, period).pause() == pytest.approx(pause)


def test_not_if_it_waits_for_the_next_batch(clock: Clock) -> None:
    assert due(clock, 2, 0.08).pause() == 0


def test_the_time_since_its_request_counts(clock: Clock) -> None:
    made = due(clock, 3, 0.08)
    clock.sleep(0.03)
    assert made.pause() == pytest.approx(0.01)
    clock.sleep(0.03)
    assert made.pause() == 0
