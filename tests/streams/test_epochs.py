"""However an epoch begins and ends, its batches are right, and it leaves nothing behind."""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.transforms import v2

from pipediag.remedy import OffloadedLoader, offload
from pipediag.replay.plan import Plan
from pipediag.streams.pipeline import StagePipeline

from ..devices import GPU
from .checker import MILLISECOND, SIZES, Known
from .endings import assert_nothing_left, open_files, threads

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class BrokenSample(Exception):
    pass


class BrokenBatch(Exception):
    pass


class Images(Dataset[Any]):
    """Byte images that depend on their index, and the index. Sample ``broken`` cannot be read."""

    def __init__(self, transform: Any, length: int, broken: int = -1, size: int = 12) -> None:
        self.transform = transform
        self.length = length
        self.broken = broken
        self._pixels = (torch.arange(3 * size * size) % 241).to(torch.uint8).view(3, size, size)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.broken:
            raise BrokenSample(f"sample {index}")
        return self.transform(self._pixels + index % 256), index


CHAIN = v2.Compose([v2.CenterCrop(8), v2.RandomHorizontalFlip(1.0)])


def images_loader(length: int = 26, broken: int = -1, **settings: Any) -> DataLoader[Any]:
    """Batches of four; the last is short."""
    return DataLoader(Images(CHAIN, length, broken), batch_size=4, **settings)


def doubled(batch: Any) -> Any:
    return batch[0] // 2, batch[1]


def as_piped(loader: DataLoader[Any], device: torch.device) -> Any:
    return StagePipeline(loader, [doubled], device)


@functools.cache
def plan(kind: str) -> Plan:
    made = offload(images_loader(), kind, samples=8)
    assert made.plan.pieces, made.plan.reasons
    return made.plan


def as_offloaded(loader: DataLoader[Any], device: torch.device) -> Any:
    return OffloadedLoader(loader, plan(device.type), device)


def as_both(loader: DataLoader[Any], device: torch.device) -> Any:
    return StagePipeline(as_offloaded(loader, device), [doubled], device)


WAYS = pytest.mark.parametrize("way", [as_piped, as_offloaded, as_both])


def check(batches: Any, way: Callable[..., Any], length: int = 26, begin: int = 0) -> None:
    """Check that batches are those of the loader, from number ``begin`` to the end."""
    plain = itertools.islice(images_loader(length), begin, None)
    for mine, theirs in itertools.zip_longest(batches, plain):
        expected = theirs if way is as_offloaded else doubled(theirs)
        assert torch.equal(mine[0].cpu(), expected[0])
        assert torch.equal(mine[1].cpu(), expected[1])


# ---- whole epochs


@WAYS
@WORKERS
@pytest.mark.parametrize("length", [26, 24, 4, 3, 1])
def test_the_last_batch_may_be_short(length: int, workers: int, way: Any, device: torch.device) -> None:
    loader = way(images_loader(length, num_workers=workers), device)
    for _ in range(2):
        check(loader, way, length)
    assert len(loader) == -(-length // 4)


@WORKERS
def test_a_loader_that_is_empty(workers: int, device: torch.device) -> None:
    pipeline = as_piped(DataLoader(Images(CHAIN, 0), batch_size=4, num_workers=workers), device)
    assert list(pipeline) == []
    assert list(pipeline) == []
    assert list(offload(DataLoader(Images(CHAIN, 0), batch_size=4, num_workers=workers), device)) == []


@WAYS
@WORKERS
def test_several_epochs_at_once(workers: int, way: Any, device: torch.device) -> None:
    loader = way(images_loader(num_workers=workers), device)
    pairs = list(zip(loader, loader, strict=True))
    check((one for one, _ in pairs), way)
    check((other for _, other in pairs), way)


@WAYS
@WORKERS
def test_after_its_end_an_epoch_stays_at_its_end(workers: int, way: Any, device: torch.device) -> None:
    batches = iter(way(images_loader(num_workers=workers), device))
    check(batches, way)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)
    del batches
    assert_nothing_left()


@WAYS
def test_persistent_workers_live_through_epochs_that_break_off(way: Any, device: torch.device) -> None:
    loader = way(images_loader(num_workers=2, persistent_workers=True), device)
    check(loader, way)
    for taken in (1, 3, 6):
        check_begun(loader, way, taken)
        check(loader, way)
    del loader
    assert_nothing_left()


def check_begun(loader: Any, way: Any, taken: int) -> None:
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == taken:
            break
    check(batches, way, length=4 * taken)


# ---- broken off


@WAYS
@WORKERS
@pytest.mark.parametrize("taken", [1, 4])
def test_a_loop_that_breaks_off_leaves_nothing_behind(taken: int, workers: int, way: Any, device: torch.device) -> None:
    loader = way(images_loader(num_workers=workers), device)
    check_begun(loader, way, taken)
    assert threads() == []
    assert_nothing_left()
    check(loader, way)


@WAYS
@WORKERS
def test_an_epoch_that_is_never_begun(workers: int, way: Any, device: torch.device) -> None:
    loader = way(images_loader(num_workers=workers), device)
    iter(loader)
    assert threads() == []
    assert_nothing_left()
    check(loader, way)


@WAYS
@WORKERS
def test_ctrl_c(workers: int, way: Any, device: torch.device) -> None:
    loader = way(images_loader(num_workers=workers), device)

    def loop() -> None:
        for number, _ in enumerate(loader):
            if number == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert_nothing_left()
    check(loader, way)


# ---- errors


def raised(loop: Callable[[], Any]) -> str:
    """Return type, traceback and message of the error that ends a loop.

    The frames of the error are cleared at once: torch's own frames form a cycle with it, and a loader's workers take
    ten seconds to end if the collector of cycles ends them.
    """
    try:
        loop()
    except Exception as error:
        said = f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}\n{error}"
        traceback.clear_frames(error.__traceback__)
        return said
    return "nothing"


@WAYS
@WORKERS
@pytest.mark.parametrize("broken", [0, 9, 25])
def test_a_sample_that_cannot_be_read(broken: int, workers: int, way: Any, device: torch.device) -> None:
    """The error comes after the same batches as from the plain loader, with the same message."""
    loader = way(images_loader(num_workers=workers), device)
    loader.dataset.broken = broken
    batches: list[Any] = []

    def loop(loader: Any) -> None:
        for batch in loader:
            batches.append(batch)

    said = raised(lambda: loop(loader))
    assert said.startswith("BrokenSample\n"), said
    assert f"sample {broken}" in said and "__getitem__" in said
    check(batches, way, length=broken // 4 * 4)
    batches.clear()
    assert_nothing_left()
    loader.dataset.broken = -1
    check(loader, way)


@WORKERS
@pytest.mark.parametrize("at", [0, 2, 5])
def test_a_stage_that_fails(at: int, workers: int, device: torch.device) -> None:
    due = [at]

    def work_of_the_users(batch: Any) -> Any:
        due[0] -= 1
        if due[0] == -1:
            raise BrokenBatch("this one")
        return doubled(batch)

    loader = StagePipeline(images_loader(num_workers=workers), [work_of_the_users], device, graphs=False)
    batches: list[Any] = []
    said = raised(lambda: batches.extend(loader))
    assert said.startswith("BrokenBatch\n") and "work_of_the_users" in said and said.endswith("this one")
    assert_nothing_left()
    batches = []
    due[0] = at

    def loop() -> None:
        for batch in loader:
            batches.append(batch)

    assert raised(loop).startswith("BrokenBatch\n")
    check(batches, as_piped, length=4 * at)
    due[0] = 1000
    check(loader, as_piped)


# ---- nothing grows


def pinned_bytes() -> int:
    """Return the bytes of page-locked memory that torch holds; 0 before torch 2.7, which does not tell."""
    stats: dict[str, int] = getattr(torch.cuda, "host_memory_stats", dict)()
    return stats.get("allocated_bytes.current", 0)


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize("settings", [{}, {"num_workers": 2, "persistent_workers": True}], ids=["inline", "workers"])
def test_forty_epochs_hold_what_five_held(settings: dict[str, Any], way: Any, device: torch.device) -> None:
    on_gpu = device.type == "cuda"
    transform = v2.Compose([v2.CenterCrop(160), v2.RandomHorizontalFlip(1.0)])
    loader = way(DataLoader(Images(transform, 56, size=200), batch_size=8, **settings), device)
    after: list[tuple[int, ...]] = []
    files: list[int] = []
    pinned: list[int] = []
    gc.disable()  # what is in use must not depend on when it runs
    try:
        for epoch in range(40):
            for number, _ in enumerate(loader):
                if on_gpu:
                    torch.cuda._sleep(MILLISECOND)  # so that as many batches as possible are ready
                if epoch % 4 == 1 and number == 4:
                    break
            if on_gpu:
                torch.cuda.synchronize()
            after.append((len(threads()), torch.cuda.memory_reserved() if on_gpu else 0))
            files.append(open_files())
            pinned.append(pinned_bytes())
    finally:
        gc.enable()
    # The number of batches in transit depends on the host's speed, within bounds.
    (running, reserved), (still_running, still_reserved) = after[4], after[39]
    assert running == still_running and still_reserved <= reserved + 2 * (4 * 8 * 3 * 160 * 160), after
    assert files[39] <= files[4] + 10, files
    assert pinned[39] <= pinned[4] + 4 * (8 * 3 * 200 * 200), pinned


@WORKERS
def test_epochs_with_workers_of_their_own_leave_no_file_open(workers: int, device: torch.device) -> None:
    """The files of shared memory that batches travel in come and go; their number does not grow with every epoch."""
    loader = as_both(images_loader(num_workers=workers), device)
    after = []
    for _ in range(10):
        list(loader)
        assert_nothing_left()
        after.append(open_files())
    assert min(after[-3:]) < after[0] + 8, after  # some of the last batches' files may still be open


class TestForks:
    pytestmark = GPU

    def test_a_worker_leaves_a_failed_batch_alone(self) -> None:
        """An error in the loop keeps its batch in a cycle of references, which a worker's collection would free."""
        offloaded = offload(DataLoader(TensorDataset(torch.ones(64, 8)), batch_size=8), "cuda")

        def fails(batch: Any) -> None:
            try:
                raise ValueError
            except ValueError as error:
                kept = error  # noqa: F841 - the error refers to this frame, and the frame to the error

        gc.disable()
        try:
            for batch in offloaded:
                fails(batch)
            forked = multiprocessing.get_context("fork").Process(target=gc.collect)
            forked.start()
            forked.join()
        finally:
            gc.enable()
        assert forked.exitcode == 0


@pytest.mark.parametrize("depth", [1, 3, 6])
@pytest.mark.parametrize("workers", [0, 2])
class TestDepth:
    pytestmark = GPU

    def test_the_depth_bounds_the_ready_batches(self, workers: int, depth: int, gpu: torch.device) -> None:
        """The memory taken shows how far a host runs ahead of a slow device; memory in use by a stream counts."""
        length = 24
        loader = StagePipeline(DataLoader(Known(length), batch_size=None, num_workers=workers), [], gpu, depth=depth)
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["active_bytes.all.current"]
        count = 0
        for _ in loader:
            torch.cuda._sleep(10 * MILLISECOND)
            count += 1
        assert count == length
        most = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
        copied = sum(SIZES) + SIZES[1] + SIZES[2]  # all in one block, and the smaller parts in their own
        assert depth * sum(SIZES) <= most <= (depth + 2) * (copied + 4096)
