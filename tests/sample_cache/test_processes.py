"""Many processes use one store at once, and some of them are killed: no reader ever sees a part of an entry."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from pipediag.sample_cache.records import encode
from pipediag.sample_cache.store import FileFacts, Store

from .test_store import got

MIB = 1 << 20
SAMPLES = 200


def value(index: int, version: int = 0) -> torch.Tensor:
    """Of 8 bytes to 800 kB; a mixture of two values is known by its content."""
    return torch.full((1 + index * index * 7919 % 100_000,), index * 1000 + version)


LARGEST = max(range(SAMPLES), key=lambda index: len(value(index)))


def check(store: Store) -> int:
    """Read everything once. Return the number of entries found, all whole."""
    found = [(index, got(store, index)) for index in range(store.samples)]
    for index, tensor in found:
        assert tensor is None or (len(tensor) == len(value(index)) and (tensor == tensor[0]).all())
        assert tensor is None or tensor[0] // 1000 == index
    return sum(tensor is not None for _, tensor in found)


def fill(store: Store, seed: int) -> None:
    order = list(range(SAMPLES))
    random.Random(seed).shuffle(order)
    for index in order:
        store.put(index, encode(value(index)), [])


def fill_folder(folder: Path, seed: int) -> None:
    fill(Store.create(SAMPLES, 300 * MIB, folder, "key"), seed)


def started(method: str, target: Any, *args: Any) -> BaseProcess:
    process = multiprocessing.get_context(method).Process(target=target, args=args, daemon=True)
    process.start()
    return process


def ended(process: BaseProcess) -> int | None:
    process.join(60)
    return process.exitcode


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store.create(SAMPLES, 300 * MIB, None if request.param == "memory" else tmp_path, "key")
    yield made
    made.close()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_a_process_stores_is_found_by_the_others(store: Store, method: str) -> None:
    assert ended(started(method, fill, store, 1)) == 0
    assert check(store) == SAMPLES and store.damaged == 0


def test_processes_that_fill_it_together_store_each_sample_once(store: Store) -> None:
    writers = [started("fork", fill, store, seed) for seed in range(4)]
    while any(writer.is_alive() for writer in writers):
        check(store)
    assert [ended(writer) for writer in writers] == [0] * 4
    assert check(store) == SAMPLES == store.entries


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_runs_fill_one_folder_at_once(tmp_path: Path, method: str) -> None:
    runs = [started(method, fill_folder, tmp_path, seed) for seed in range(2)]
    assert [ended(run) for run in runs] == [0, 0]
    store = Store.create(SAMPLES, 300 * MIB, tmp_path, "key")
    assert check(store) == SAMPLES and store.damaged == 0


def open_and_check(folder: Path, samples: int) -> None:
    for _ in range(30):
        store = Store.create(samples, MIB, folder, "key")
        for index in range(samples):
            store.put(index, encode(samples), [])
            assert got(store, index) in (samples, None)


@pytest.mark.slow
def test_runs_that_replace_each_others_file_never_read_the_wrong_one(tmp_path: Path) -> None:
    runs = [started("fork", open_and_check, tmp_path, samples) for samples in (5, 6, 7, 7)]
    assert [ended(run) for run in runs] == [0] * 4


def replace_for_ever(store: Store, seed: int, source: Path) -> None:
    """Store samples whose file another process changes all the time."""
    draw = random.Random(seed)
    while store.full is None:
        index = draw.randrange(SAMPLES)
        try:
            facts = FileFacts.of(source)
        except OSError:
            continue
        store.put(index, encode(value(index, draw.randrange(1000))), [facts])
        store.get(draw.randrange(SAMPLES))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "folder"])
@pytest.mark.parametrize("seed", range(3))
def test_writers_killed_at_any_point_leave_only_whole_entries(where: str, seed: int, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"")
    draw = random.Random(seed)
    killed = 0
    for round_ in range(40):
        folder = tmp_path if where == "folder" else None
        store = Store.create(SAMPLES, 200 * MIB, folder, f"key{round_ // 4}")
        writers = [started("fork", replace_for_ever, store, 100 * seed + round_ + k, source) for k in range(2)]
        end = time.monotonic() + 0.02 + 0.1 * draw.random()
        while time.monotonic() < end and store.full is None:
            check(store)
            source.write_bytes(bytes(round_))
        for writer in writers:
            os.kill(writer.pid or 0, signal.SIGKILL)
            killed += ended(writer) == -signal.SIGKILL
        check(store)
        assert store.damaged == 0
    assert killed > 10  # the others had filled the room before


def hold_the_lock(store: Store, ready: Any) -> None:
    with store._open.file.locked():
        ready.set()
        time.sleep(60)


def test_a_writer_killed_with_the_lock_releases_it(store: Store) -> None:
    ready = multiprocessing.get_context("fork").Event()
    holder = started("fork", hold_the_lock, store, ready)
    assert ready.wait(30)
    waiting = started("fork", fill, store, 0)
    waiting.join(0.2)
    assert waiting.is_alive() and store.entries == 0
    os.kill(holder.pid or 0, signal.SIGKILL)
    assert ended(waiting) == 0 and store.entries == SAMPLES


def test_a_process_forked_under_the_lock_does_not_keep_it(store: Store) -> None:
    with store._open.file.locked():
        idle = started("fork", time.sleep, 60)
    other = started("fork", fill, store, 0)
    assert ended(other) == 0 and idle.is_alive()
    idle.kill()


def write_into(store: Store) -> None:
    tensor = got(store, LARGEST)
    tensor.fill_(-1)
    if os.fork() == 0:
        os._exit(0 if check(store) == SAMPLES and (tensor == -1).all() else 1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0


def test_what_a_process_writes_is_seen_by_no_other_not_even_its_forks(store: Store) -> None:
    fill(store, 0)
    assert ended(started("fork", write_into, store)) == 0
    assert check(store) == SAMPLES


class Cached(Dataset[Any]):
    """Serves samples from a store, which it fills."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, bool]:
        found = got(self.store, index)
        if found is None:
            self.store.put(index, encode(value(index)), [])
        return value(index)[:1] if found is None else found[:1], found is not None


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_a_loaders_second_epoch_finds_what_the_first_stored(store: Store, method: str | None) -> None:
    settings = {"num_workers": 2, "multiprocessing_context": method, "persistent_workers": True} if method else {}
    loader = DataLoader(Cached(store), batch_size=20, shuffle=True, **settings)
    for epoch in range(3):
        batches = list(loader)
        assert sorted(int(x) for tensors, _ in batches for x in tensors) == [1000 * index for index in range(SAMPLES)]
        assert all(bool(hits.all()) == (epoch > 0) for _, hits in batches)
    assert check(store) == SAMPLES


def test_a_store_closed_while_workers_read_goes_on_in_them(store: Store) -> None:
    fill(store, 0)
    loader = iter(DataLoader(Cached(store), batch_size=2, num_workers=2, multiprocessing_context="fork"))
    next(loader)
    store.close()
    assert all(hits.all() for _, hits in loader)


def test_a_closed_store_can_be_sent(store: Store) -> None:
    store.close()
    assert pickle.loads(pickle.dumps(store)).entries == 0


CREATOR = """
import os, signal, sys
from pipediag.sample_cache.records import encode
from pipediag.sample_cache.store import Store
import torch
store = Store.create(10, 1 << 26, None, "")
assert all(store.put(index, encode(torch.zeros(10_000)), []) for index in range(10))
print(os.readlink(f"/proc/self/fd/{store._open.file.number}"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_in_shared_memory_when_the_creator_is_killed() -> None:
    before = set(os.listdir("/dev/shm"))
    run = subprocess.run([sys.executable, "-c", CREATOR], capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL and "memfd:pipediag (deleted)" in run.stdout, run.stderr
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "pipediag" in name}
