"""How many bytes a store may take: what is free under every limit, less a reserve."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pipediag.memo import room

GIB = 1 << 30
MOUNTS = """\
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684096k
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
31 23 0:28 / /mnt/data rw,relatime - nfs4 host:/tmpfs rw
"""


def limited(monkeypatch: pytest.MonkeyPatch, *limits: tuple[int, int]) -> None:
    monkeypatch.setattr(room, "limits", lambda: iter(limits))


def test_each_limit_keeps_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, (100 * GIB, 60 * GIB), (20 * GIB, 15 * GIB))
    assert room.free_memory() == 13 * GIB


def test_the_reserve_is_16_gib_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, (2000 * GIB, 1000 * GIB))
    assert room.free_memory() == 984 * GIB


def test_nothing_may_be_taken_of_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, (100 * GIB, 9 * GIB))
    assert room.free_memory() == 0


@pytest.mark.parametrize(
    ("device", "expected"), [((0, 23), True), ((254, 0), False), ((0, 28), False), ((9, 9), False)]
)
def test_a_disk_in_memory_is_known_by_its_mount(device: tuple[int, int], expected: bool) -> None:
    assert room.in_memory(os.makedev(*device), MOUNTS) == expected


def test_a_disk_in_memory_has_no_more_room_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100 * GIB, 20 * GIB, 80 * GIB))
    limited(monkeypatch, (100 * GIB, 30 * GIB))
    monkeypatch.setattr(room, "in_memory", lambda *_: False)
    assert room.free_disk(tmp_path) == 70 * GIB
    monkeypatch.setattr(room, "in_memory", lambda *_: True)
    assert room.free_disk(tmp_path) == 20 * GIB
