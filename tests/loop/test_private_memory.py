"""What a trial's process writes into shared memory stays its own."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import sys
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from pipediag.loop.private_memory import page_locked, unshare_memory
from pipediag.loop.separate_process import Collate, tried

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mappings are read from /proc")


class Counting(Dataset[int]):
    """Counts its samples in every kind of memory that processes share."""

    def __init__(self, folder: Path) -> None:
        (folder / "file").write_bytes(bytes(64))
        self.value = multiprocessing.Value("i", 5)
        self.array = multiprocessing.Array("d", [5.0])
        self.tensor = torch.full((3,), 5).share_memory_()
        self.anonymous = mmap.mmap(-1, 4096)
        self.anonymous[0] = 5
        self.named = shared_memory.SharedMemory(create=True, size=16)
        self.file = np.memmap(folder / "file", dtype="u1", mode="r+")
        self.named.buf[0] = self.file[0] = 5

    def counts(self) -> list[int]:
        counts = (self.value.value, self.array[0], self.tensor[0], self.anonymous[0], self.named.buf[0], self.file[0])
        return [int(count) for count in counts]

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        with self.value.get_lock():
            self.value.value += 1
        with self.array.get_lock():
            self.array[0] += 1
        self.tensor += 1
        self.anonymous[0] += 1
        self.named.buf[0] += 1
        self.file[0] += 1
        return index


def count(dataset: Any, collate: Collate, indices: list[Any]) -> list[int]:
    for index in indices:
        dataset[index]
    return dataset.counts()  # type: ignore[no-any-return]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_training_sees_nothing_of_it(tmp_path: Path, workers: int) -> None:
    data = Counting(tmp_path)
    try:
        (counts,) = tried(DataLoader(data, 2, num_workers=workers), count, 4)
        assert counts == [9] * 6, "in the process itself it counts as usual"
        assert data.counts() == [5] * 6
        assert (tmp_path / "file").read_bytes()[0] == 5
    finally:
        data.named.close()
        data.named.unlink()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_page_locked_memory_is_not_copied(tmp_path: Path) -> None:
    """Batches on their way to the device are gigabytes, and no code of the user's writes into them."""
    batch = torch.zeros(1 << 22, dtype=torch.uint8).pin_memory()
    found = page_locked(Counting(tmp_path), None)
    assert any(begin <= batch.data_ptr() < begin + (1 << 30) for begin in found)
    holding = Counting(tmp_path)
    holding.tensor = batch
    assert not page_locked(holding, None)


def test_what_stays_shared(tmp_path: Path) -> None:
    """Memory at the given addresses is the training's."""
    memory = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for kept, seen in ((frozenset({address}), 7), (frozenset[int](), 0)):
        memory[0] = 0
        process = multiprocessing.get_context("fork").Process(target=_write, args=(memory, kept))
        process.start()
        process.join()
        assert (process.exitcode, memory[0]) == (0, seen)


def _write(memory: mmap.mmap, kept: frozenset[int]) -> None:
    unshare_memory(kept)
    memory[0] = 7
