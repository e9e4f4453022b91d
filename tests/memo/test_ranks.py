"""The ranks of one job on one machine share what is kept in memory, and nothing is left of it when they end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipediag.memo import ranks

JOB = {"LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"}


def test_only_ranks_of_one_job_share_a_name() -> None:
    name = ranks.name_for("key", JOB)
    assert name == ranks.name_for("key", {**JOB, "RANK": "1"})
    others = [ranks.name_for("other", JOB), ranks.name_for("key", {**JOB, "MASTER_PORT": "29501"})]
    assert name and name not in others
    assert ranks.name_for("key", {}) == ranks.name_for("key", {"LOCAL_WORLD_SIZE": "1"}) == ""


def test_a_file_is_found_by_its_name_as_long_as_it_is_open() -> None:
    name = f"pipediag-test-{os.getpid()}"
    assert ranks.opened(name) is None
    number = os.memfd_create(name)
    os.write(number, b"content")
    found = ranks.opened(name)
    assert found is not None and os.pread(found, 7, 0) == b"content"
    os.close(found)
    os.close(number)
    assert ranks.opened(name) is None


def test_one_rank_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    name, order = f"pipediag-test-{os.getpid()}", []

    def second() -> None:
        with ranks.alone(name):
            order.append("second")

    with ranks.alone(name):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
        monkeypatch.setattr(ranks, "_PATIENCE", 0.0)
        with pytest.raises(TimeoutError), ranks.alone(name):
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
