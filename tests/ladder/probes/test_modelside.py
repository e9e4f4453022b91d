"""Single steps on one cached batch after another, with a loop and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pipediag.ladder.caches import BatchCache
from pipediag.ladder.probes import modelside as waits
from pipediag.ladder.probes.modelside import batch_steps, watch_syncs
from pipediag.measure.syncs import SyncLog
from pipediag.session import SyncCall, Syncs

from .cached_loop import CachedLoop, driven


class Loop(CachedLoop):
    """Loop, clock and device in one: a step on a batch takes as many milliseconds as the batch has elements.

    A step's time passes only when the device is synchronized.
    """

    def __init__(self, leaves: tuple[int, ...] = ()) -> None:
        super().__init__(leaves=leaves)
        self.seconds = self.pending = 0.0
        self.synchronized = 0
        self.clock = self.device = self

    def now(self) -> float:
        return self.seconds

    def synchronize(self) -> None:
        self.seconds += self.pending
        self.pending = 0.0
        self.synchronized += 1

    def hand(self, batch: Any) -> Generator[Any, None, bool]:
        back = yield from super().hand(batch)
        self.pending += batch.numel() / 1000
        return back


def steps(loop: Loop, sizes: list[int], pace: float = 0.001, seconds: float = 3.0) -> list[dict[str, Any]]:
    loop.batches = BatchCache([torch.zeros(size) for size in sizes])
    found: list[dict[str, Any]] = driven(batch_steps(loop, pace, seconds))  # type: ignore[arg-type]
    return found


def test_each_batch_separately() -> None:
    """Three steps each, in rounds; the first one may include one-time work and is not timed."""
    loop = Loop()
    found = steps(loop, [5, 9, 2, 7])
    assert [len(batch) for batch in loop.handed] == 3 * [5, 9, 2, 7]
    assert [one["nbytes"] for one in found] == [20, 36, 8, 28]
    assert [one["ms"] for one in found] == [pytest.approx([ms, ms]) for ms in (5, 9, 2, 7)]
    assert loop.synchronized == 2 * 12, "around each step"


@pytest.mark.parametrize(("leaves", "timed"), [((3, 4), {20: 1, 36: 2, 8: 2, 28: 2}), ((5, 9), {20: 2, 8: 2, 28: 2})])
def test_a_step_at_the_end_of_an_epoch_is_not_timed(leaves: tuple[int, ...], timed: dict[int, int]) -> None:
    """What the loop does between two epochs is not part of a step; a batch without any timed step is left out."""
    assert {one["nbytes"]: len(one["ms"]) for one in steps(Loop(leaves), [5, 9, 2, 7])} == timed


@pytest.mark.parametrize("sizes", [[], [5], [5, 9, 2]])
def test_too_few_batches_to_compare(sizes: list[int]) -> None:
    loop = Loop()
    assert steps(loop, sizes) == []
    assert loop.handed == []


@pytest.mark.parametrize(
    "pace, seconds, batches",
    [(0.125, 3.0, 8), (0.125, 1.875, 5), (0.125, 1.25, 0), (0.25, 3.0, 4), (0.0, 3.0, 8)],
)
def test_no_more_batches_than_fit_into_the_time(pace: float, seconds: float, batches: int) -> None:
    assert len(steps(Loop(), [1] * 8, pace, seconds)) == batches


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
    loop_side = CachedLoop(batches or [torch.zeros(3), torch.ones(3)], device)
    return driven(watch_syncs(loop_side, pace), loop), len(loop_side.handed)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("pace", "steps"), [(0.0, 16), (0.01, 16), (0.3, 10), (1.0, 4), (60.0, 4)])
def test_fewer_slow_steps(logs: list[SyncLog], pace: float, steps: int) -> None:
    found, handed = watched(lambda batch: None, pace=pace)
    assert found == Syncs(steps) and handed == steps


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
    climb = watch_syncs(CachedLoop([torch.zeros(3)], "cuda"), 0.01)  # type: ignore[arg-type]
    next(climb)
    assert len(logs) == 1
    climb.close()
    assert logs == []
