"""What a trial's process writes into shared memory stays its own."""

from __future__ import annotations

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
