"""Watch a loop for calls that wait for the device: the number of steps, their batches, and that it always ends.

The loop itself logs calls, in place of CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pipediag.ladder.caches import BatchCache
from pipediag.ladder.probes import modelside as waits
from pipediag.ladder.probes.modelside import watch_syncs
from pipediag.measure.device import Device
from pipediag.measure.syncs import SyncLog
from pipediag.session import SyncCall, Syncs


class LoopSide:
    """A loop that gets batches; it need not come back in the same epoch."""

    def __init__(self, batches: list[Any], device: str) -> None:
        self.device = Device(torch.device(device))
        self._cache = BatchCache(batches)

    def cache(self, rung: str) -> BatchCache:
        return self._cache

    def hand(self, batch: Any) -> Iterator[Any]:
        yield batch
        return False


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> list[SyncLog]:
    """The logs that are open."""
    found: list[SyncLog] = []

    @contextmanager
    def watch() -> Iterator[SyncLog]:
        found.append(SyncLog())
        try:
            yield found[-1]
        finally:
            found.pop()

    monkeypatch.setattr(waits.syncs, "watch", watch)
    return found


def watched(
    loop: Callable[[Any], None], batches: list[Any] | None = None, pace: float = 0.01, device: str = "cuda"
) -> tuple[Syncs, int]:
    """Return the result, and the number of batches that the loop got."""
    loop_side = LoopSide(batches or [torch.zeros(3), torch.ones(3)], device)
    climb = watch_syncs(loop_side, pace)  # type: ignore[arg-type]
    handed = 0
    while True:
        try:
            batch = next(climb)
        except StopIteration as end:
            return end.value, handed
        handed += 1
        loop(batch)


def test_calls_in_every_step(logs: list[SyncLog]) -> None:
    steps = iter(range(100))

    def loop(batch: Any) -> None:
        logs[0].note("item()", "train.py:3", "x.item()", "Read it later.", 0.25)
        if next(steps) % 10 == 0:
            logs[0].note("tolist()", "train.py:9", "print(x.tolist())", "Less often.", 0.25)

    found, handed = watched(loop)
    assert found == Syncs(16, [SyncCall("item()", "train.py:3", "x.item()", 1.0, 250.0, "Read it later.")])
    assert handed == 16
    assert logs == []


def test_no_calls(logs: list[SyncLog]) -> None:
    assert watched(lambda batch: None)[0] == Syncs(16)


@pytest.mark.parametrize(("pace", "steps"), [(0.0, 16), (0.3, 10), (1.0, 4), (60.0, 4)])
def test_fewer_slow_steps(logs: list[SyncLog], pace: float, steps: int) -> None:
    found, handed = watched(lambda batch: None, pace=pace)
    assert found.steps == handed == steps


def test_batches_are_copies(logs: list[SyncLog]) -> None:
    batches = [torch.zeros(3), torch.ones(3)]
    seen: list[float] = []

    def loop(batch: Any) -> None:
        seen.append(float(batch[0]))
        batch += 5

    watched(loop, batches)
    assert seen == [0.0, 1.0] * 8
    assert float(batches[0].sum()) == 0.0


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_cuda_reports_waits(device: str, logs: list[SyncLog], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: None)
    found, handed = watched(lambda batch: None, device=device)
    assert found == Syncs(unwatched=f"only CUDA reports calls that wait for it, and training runs on {device}")
    assert handed == 0


def test_a_script_that_ends_meanwhile(logs: list[SyncLog]) -> None:
    climb = watch_syncs(LoopSide([torch.zeros(3)], "cuda"), 0.01)  # type: ignore[arg-type]
    next(climb)
    assert len(logs) == 1
    climb.close()
    assert logs == []
