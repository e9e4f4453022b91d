"""Settling: how many steps a loop makes under a rung before its window, by a clock that the batches turn."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipediag.ladder.delivery import NO_COST, Delivery
from pipediag.ladder.windows import Rounds, Windows
from pipediag.measure.device import Device
from pipediag.measure.schedule import Schedule
from pipediag.session import REMEDIED, Session

#: Workers and batches that lie ready of the loader as it is, and of the one under the remedy.
SOURCES = {"baseline": SimpleNamespace(workers=2, backlog=8), REMEDIED: SimpleNamespace(workers=2, backlog=3)}
#: Seconds a step.
STEPS = {"baseline": 1 / 8, REMEDIED: 1 / 64}


class Loop:
    """A loop whose steps take their time by the rung, fed from two loaders in turn."""

    alternate = True

    def __init__(self, horizon: int | None = None, broken: str = "") -> None:
        self.seconds = 0.0
        self.taken = 0
        self.broken = broken
        self.epochs = SimpleNamespace(horizon=horizon, last_chance=False)

    def now(self) -> float:
        return self.seconds

    def source(self, rung: str) -> Any:
        return SOURCES[rung]

    def await_training(self) -> Generator[Any, None, None]:
        yield from ()

    def take(self, rung: str) -> Generator[Any, None, Delivery]:
        yield from ()
        self.taken += 1
        return Delivery(torch.zeros(1), rung, not self.broken, NO_COST, 0, self.broken)

    def hand(self, batch: Any) -> Generator[Any, None, bool]:
        self.seconds += STEPS[self.rung]
        yield batch
        return True


class Opened(Exception):
    """A window has begun."""


def windows_of(loop: Loop) -> Windows:
    feed = SimpleNamespace(
        loader=SimpleNamespace(num_workers=2), cell=SimpleNamespace(switch=lambda rung: setattr(loop, "rung", rung))
    )
    plan = SimpleNamespace(inference=False)
    setting = SimpleNamespace(plan=plan, clock=loop, training=None, send=None, draws_of_others=None)
    rounds = Rounds(Schedule(["baseline", REMEDIED], Session(), lambda session: []), target=1.0)
    device = Device(torch.device("cpu"))
    ignored: Any = None
    windows = Windows(feed, loop, setting, device, ignored, rounds, 0, False, ignored)  # type: ignore[arg-type]
    windows.pace.update(STEPS)
    return windows


def settling(loop: Loop, *rungs: str) -> list[int]:
    """Steps that the loop makes before a window of each rung, fed from elsewhere before each but the first."""
    windows = windows_of(loop)
    return [sum(1 for _ in windows.settle(rung, rested=place > 0)) for place, rung in enumerate(rungs)]


def test_one_batch_of_every_worker_beyond_those_that_lie_ready() -> None:
    """And with what lay ready it makes no step; as many come after it, in which the queues get full if they can."""
    loop = Loop()
    assert settling(loop, "baseline", "baseline") == [2, 8 + 2]
    assert loop.taken == 2 + 8 + 8 + 2


def test_a_source_that_fails_is_not_asked_for_all_that_should_lie_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(broken="it fails")
    windows = windows_of(loop)
    withdrawn: list[str] = []
    monkeypatch.setattr(windows, "unavailable", lambda name, why: withdrawn.append(f"{name}: {why}"))
    assert list(windows.settle("baseline", rested=True)) == []
    assert (loop.taken, withdrawn) == (2, ["baseline: it fails"])


def test_the_workers_of_the_other_loader_have_filled_their_queues() -> None:
    """Eight batches of an eighth of a second make the remedied loop wait; three of its own are no matter."""
    assert settling(Loop(), "baseline", REMEDIED, "baseline") == [2, 64, 8 + 2]


def test_a_loop_that_leaves_early_has_no_time_for_that() -> None:
    assert settling(Loop(horizon=11), "baseline", REMEDIED) == [2, 3]


@pytest.mark.parametrize("rung", ["baseline", REMEDIED])
def test_a_source_that_was_never_timed_keeps_nobody_waiting(rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEPS, rung, 0.0)
    other = "baseline" if rung == REMEDIED else REMEDIED
    assert settling(Loop(), rung, other)[1] == SOURCES[other].backlog + 2


@pytest.mark.parametrize("alternate", [False, True])
def test_batches_that_were_made_while_the_device_warmed_up_are_in_no_window(
    alternate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    loop.alternate = alternate
    windows = windows_of(loop)

    def opened(rung: str) -> None:
        raise Opened

    monkeypatch.setattr(windows, "_open", opened)

    def before_a_window() -> tuple[int, int]:
        steps, taken = 0, loop.taken
        with pytest.raises(Opened):
            for _ in windows.measure("baseline"):
                steps += 1
        return steps, loop.taken - taken

    assert [before_a_window(), before_a_window()] == [(10, 8 + 10), (10, 8 + 10) if alternate else (2, 2)]


def test_the_loader_alone_is_not_timed_for_long_where_its_pace_was_guessed_too_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four batches lay ready when the window was planned; each one after them takes a second."""
    monkeypatch.setitem(
        SOURCES, "supply", SimpleNamespace(workers=2, backlog=8, worker_pids=[], waited=0.0, stalled=0.0)
    )
    loop = Loop()
    windows = windows_of(loop)
    windows.pace.pop("supply", None)
    recorded: list[Any] = []
    monkeypatch.setattr(windows, "_record", lambda window, *_: recorded.append(window))
    windows._setting.training = SimpleNamespace(steps=0)  # type: ignore[assignment]
    windows._setting.draws_of_others = lambda ordinal: 0  # type: ignore[method-assign]
    windows._gpu = None
    windows._deadline = SimpleNamespace(passed=False)  # type: ignore[assignment]
    taken = 0

    def take(rung: str) -> Generator[Any, None, Delivery]:
        nonlocal taken
        taken += 1
        loop.seconds += 0.001 if taken <= 4 else 1.0
        yield from ()
        return Delivery(torch.zeros(1), "baseline", True, NO_COST, 0)

    monkeypatch.setattr(loop, "take", take)
    assert list(windows._measure_supply()) == []
    assert [(window.watch.steps, window.watch.seconds) for window in recorded] == [(6, pytest.approx(4.002))]
