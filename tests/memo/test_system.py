"""How many bytes may be taken: what is free under every limit, less a reserve. What ranks of a job share in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipediag.memo import system

GIB = 1 << 30
MOUNTS = """\
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684096k
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
31 23 0:28 / /mnt/data rw,relatime - nfs4 host:/tmpfs rw
"""


JOB = {"LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"}


def limited(monkeypatch: pytest.MonkeyPatch, *limits: tuple[int, int]) -> None:
    monkeypatch.setattr(system, "limits", lambda: iter(limits))


def test_each_limit_keeps_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, (100 * GIB, 60 * GIB), (20 * GIB, 15 * GIB))
    assert system.free_memory() == 13 * GIB


def test_the_reserve_is_16_gib_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, (2000 * GIB, 1000 * GIB))
    assert system.free_memory() == 984 * GIB


def test_nothing_may_be_taken_of_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, (100 * GIB, 9 * GIB))
    assert system.free_memory() == 0


@pytest.mark.parametrize(
    ("device", "expected"), [((0, 23), True), ((254, 0), False), ((0, 28), False), ((9, 9), False)]
)
def test_a_disk_in_memory_is_known_by_its_mount(device: tuple[int, int], expected: bool) -> None:
    assert system.in_memory(os.makedev(*device), MOUNTS) == expected


def test_a_disk_in_memory_has_no_more_room_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100 * GIB, 20 * GIB, 80 * GIB))
    limited(monkeypatch, (100 * GIB, 30 * GIB))
    monkeypatch.setattr(system, "in_memory", lambda *_: False)
    assert system.free_disk(tmp_path) == 70 * GIB
    monkeypatch.setattr(system, "in_memory", lambda *_: True)
    assert system.free_disk(tmp_path) == 20 * GIB


def test_only_ranks_of_one_job_share_a_name() -> None:
    name = system.job_file("key", JOB)
    assert name == system.job_file("key", {**JOB, "RANK": "1"})
    others = [system.job_file("other", JOB), system.job_file("key", {**JOB, "MASTER_PORT": "29501"})]
    assert name and name not in others
    assert system.job_file("key", {}) == system.job_file("key", {"LOCAL_WORLD_SIZE": "1"}) == ""


def test_a_file_is_found_by_its_name_as_long_as_it_is_open() -> None:
    name = f"pipediag-test-{os.getpid()}"
    assert system.opened_elsewhere(name) is None
    number = os.memfd_create(name)
    os.write(number, b"content")
    found = system.opened_elsewhere(name)
    assert found is not None and os.pread(found, 7, 0) == b"content"
    os.close(found)
    os.close(number)
    assert system.opened_elsewhere(name) is None


def test_one_rank_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    name, order = f"pipediag-test-{os.getpid()}", []

    def second() -> None:
        with system.ranks_lock(name):
            order.append("second")

    with system.ranks_lock(name):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
        monkeypatch.setattr(system, "_PATIENCE", 0.0)
        with pytest.raises(TimeoutError), system.ranks_lock(name):
            pass
    thread.join()
    assert order == ["first", "second"]


JOINT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler
import pipediag

def log():
    return sys.argv[1]

class Squares(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return square(index), index

@pipediag.pure
def square(index):
    time.sleep(0.005)
    with open(log(), "a") as file:
        file.write(f"{index}\\n")
    return torch.full((5000,), index * index)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    dataset = Squares()
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    cached = pipediag.cache(loader, folder=sys.argv[2] if len(sys.argv) > 2 else None)
    dist.barrier()
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for values, indices in cached:
            assert (values == (indices * indices)[:, None]).all()
        dist.barrier()
    if dist.get_rank() == 0:
        print("made", len(open(log()).readlines()), "kept", cached.memo.arena.entries, flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("where", ["memory", pytest.param("folder", marks=pytest.mark.slow)])
def test_each_result_is_made_once_for_all_ranks(where: str, tmp_path: Path) -> None:
    (tmp_path / "joint.py").write_text(JOINT)
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "joint.py"]
    options = [str(tmp_path / "log"), *([str(tmp_path / "kept")] if where == "folder" else [])]
    ran = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    _, made, _, kept = ran.stdout.split()
    assert (made, kept) == ("40", "40")
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "pipediag" in name}
