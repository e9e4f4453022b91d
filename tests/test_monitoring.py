"""What the loop waits for is timed from beside it, and the loop gets its batches as without that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import pipediag
from pipediag import monitoring
from pipediag.errors import UsageError
from pipediag.monitoring import Meter, Monitor, means, monitored

from .clock import Clock

Logged = list[tuple[dict[str, float], int]]


def batches(clock: Clock, count: int, seconds: float) -> Iterator[int]:
    for number in range(count):
        clock.sleep(seconds)
        yield number


@pytest.fixture
def logged() -> Logged:
    return []


@pytest.fixture
def log(logged: Logged) -> Callable[[dict[str, float], int], None]:
    return lambda figures, steps: logged.append((figures, steps))


def test_waits_and_steps(log: Any, logged: Logged) -> None:
    clock = Clock()
    meter = Meter(log, 4, clock)
    for epoch in range(3):
        for number in Monitor(batches(clock, 6, 0.03), meter):
            clock.sleep(0.07)
            assert number < 6, epoch
    assert [steps for _, steps in logged] == [4, 8, 12]  # of 5 in each epoch: its first batch is left out
    for figures, _ in logged:
        assert figures == pytest.approx({"data/wait_ms": 30.0, "data/step_ms": 100.0, "data/share": 0.3})


def test_a_pause_is_left_out() -> None:
    steps = [(0.1, 0.03)] * 9 + [(60.0, 0.03)]
    assert means(steps) == pytest.approx({"data/wait_ms": 30.0, "data/step_ms": 100.0, "data/share": 0.3})
    assert means([(3.0, 1.0), (5.0, 1.0)])["data/step_ms"] == 4000.0


def test_slow_batches_are_no_pauses() -> None:
    assert means([(0.1, 0.03)] * 9 + [(60.07, 60.0)])["data/wait_ms"] == pytest.approx(6027.0)


def test_a_loader_stays_what_it_is() -> None:
    loader = DataLoader(torch.arange(10.0), batch_size=2)  # type: ignore[arg-type]
    monitor = pipediag.monitor(loader)
    assert len(monitor) == 5 and monitor.dataset is loader.dataset and monitor.sampler is loader.sampler
    assert torch.equal(torch.cat([*monitor]), torch.arange(10.0))
    with pytest.raises(AttributeError):
        monitor.nothing  # noqa: B018


@pytest.mark.parametrize("kept", [False, True])
def test_whoever_iterates_a_loader(log: Any, logged: Logged, kept: bool) -> None:
    loader = DataLoader(torch.arange(12.0), batch_size=2, num_workers=1, persistent_workers=kept)  # type: ignore[arg-type]
    with monitored(lambda one: one is loader, log, 2):
        [*DataLoader(torch.arange(12.0), batch_size=2)]  # type: ignore[arg-type]
        for _ in range(2):
            assert torch.equal(torch.cat([*loader]), torch.arange(12.0))
        next(iter(loader))
    assert [steps for _, steps in logged] == [2, 4, 6, 8, 10]
    assert torch.equal(torch.cat([*loader]), torch.arange(12.0)) and len(logged) == 5


def test_errors_of_the_loader_pass(log: Any) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        [*pipediag.monitor(failing(), log)]


@pytest.mark.parametrize("call", [lambda: pipediag.monitor(3), lambda: pipediag.monitor([], every=0)])  # type: ignore[arg-type]
def test_wrong_arguments(call: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        call()


def test_by_default_a_warning_comes_once(caplog: pytest.LogCaptureFixture) -> None:
    log = monitoring._Logged()
    with caplog.at_level(logging.INFO, "pipediag"):
        for step, share in ((100.0, 0.01), (4000.0, 0.36), (100.0, 0.36)):
            log({"data/wait_ms": step * share, "data/step_ms": step, "data/share": share}, 50)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]
    assert caplog.messages[1] == (
        "after 50 steps: the loop waits 1440 of 4000 ms for data (36 % of a step, observed); pipediag analyze says "
        "where it comes from"
    )
