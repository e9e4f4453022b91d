"""What a store gives back is what was put into it, as long as the files it was made from have not changed."""

from __future__ import annotations

import copy
import errno
import gc
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.errors import UsageError
from pipediag.sample_cache import store as store_module
from pipediag.sample_cache.records import decode, encode
from pipediag.sample_cache.store import FileFacts, Store

MIB = 1 << 20


@pytest.fixture(params=["memory", "folder"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "cache"


@pytest.fixture
def store(folder: Path | None) -> Iterator[Store]:
    made = Store.create(8, 16 * MIB, folder, "key")
    yield made
    made.close()


def put(store: Store, index: int, value: Any, *files: Path) -> bool:
    return store.put(index, encode(value), [FileFacts.of(file) for file in files])


def got(store: Store, index: int) -> Any:
    record = store.get(index)
    return None if record is None else decode(record)


@pytest.mark.parametrize("size", [10, 3000, 30_000])
def test_what_is_put_is_returned(store: Store, size: int) -> None:
    value = torch.arange(size)
    assert got(store, 2) is None
    assert put(store, 2, (value, "label")) and not put(store, 2, "other")
    image, label = got(store, 2)
    assert torch.equal(image, value) and label == "label"
    assert (store.entries, store.full, store.damaged, store.changed) == (1, None, 0, 0)
    assert store.used >= size * 8


def test_large_buffers_are_aligned(store: Store) -> None:
    put(store, 0, [np.zeros(size, np.uint8) for size in (1001, 30_001, 77)])
    put(store, 1, [np.zeros(size, np.uint8) for size in (1001, 30_001, 77)])
    assert [array.ctypes.data % 64 for index in (0, 1) for array in got(store, index)[:2]] == [0, 0, 0, 0]


@pytest.mark.parametrize("index", [-1, 8])
def test_only_the_datasets_indices_are_accepted(store: Store, index: int) -> None:
    with pytest.raises(IndexError):
        store.get(index)
    with pytest.raises(IndexError):
        put(store, index, 1)


class TestFiles:
    def test_a_changed_file_is_a_miss_that_is_counted_and_replaced(self, store: Store, tmp_path: Path) -> None:
        source, other = tmp_path / "image", tmp_path / "label"
        source.write_bytes(b"one")
        other.write_bytes(b"two")
        assert put(store, 1, "old", source, other) and got(store, 1) == "old"
        other.write_bytes(b"three")
        assert got(store, 1) is None and got(store, 1) is None
        assert (store.changed, store.entries) == (1, 0)
        assert put(store, 1, "new", source, other) and got(store, 1) == "new"

    def test_a_file_of_the_same_size_counts_as_changed_by_its_time(self, store: Store, tmp_path: Path) -> None:
        source = tmp_path / "image"
        source.write_bytes(b"one")
        put(store, 1, "old", source)
        os.utime(source, ns=(0, 0))
        assert got(store, 1) is None

    def test_a_vanished_file_is_a_miss(self, store: Store, tmp_path: Path) -> None:
        source = tmp_path / "image"
        source.write_bytes(b"one")
        put(store, 1, "old", source)
        source.unlink()
        assert got(store, 1) is None and store.changed == 1

    def test_facts_are_those_of_the_moment_and_independent_of_the_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("image").write_bytes(b"one")
        assert FileFacts.of("image") == (str(tmp_path / "image"), 3, os.stat("image").st_mtime_ns)


class TestWrittenInto:
    """User code writes into an array that it was handed."""

    @pytest.mark.parametrize("at", [0, -1])
    def test_the_entries_beside_it_keep_what_they_were(self, store: Store, at: int) -> None:
        for index in range(3):
            put(store, index, torch.full((3 * MIB // 2,), index, dtype=torch.uint8))
        got(store, 1)[at] = 9
        assert (got(store, 0) == 0).all() and (got(store, 2) == 2).all()

    @pytest.mark.parametrize("size", [1000, 30_000])
    def test_the_entry_keeps_what_it_was(self, store: Store, size: int) -> None:
        put(store, 0, torch.zeros(size))
        tensor = got(store, 0)
        tensor += 1
        assert got(store, 0).sum() == 0


class TestFull:
    def test_its_limit(self, folder: Path | None) -> None:
        store = Store.create(100, MIB, folder, "key")
        accepted = [put(store, index, torch.full((30_000,), index)) for index in range(100)]
        assert accepted == [True] * 4 + [False] * 96 and store.full == "its limit is reached"
        assert all((got(store, index) == index).all() for index in range(4)) and store.used <= MIB

    def test_memory_or_disk_that_runs_short(self, folder: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        left = 300 * MIB
        for name in ("free_memory", "free_disk"):
            monkeypatch.setattr(store_module, name, lambda *_: left)
        store = Store.create(100, 1000 * MIB, folder, "key")
        value = encode(torch.zeros(10 * MIB // 4))
        assert all(store.put(index, value, []) for index in range(6))
        left = 5 * MIB
        assert not all(store.put(index, value, []) for index in range(6, 10))
        assert store.full == ("little memory is left" if folder is None else "little room on the disk is left")
        assert not put(store, 99, 0) and got(store, 0).numel() == 10 * MIB // 4

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM])
    def test_a_disk_that_is_full_in_the_middle_of_an_entry(
        self, store: Store, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pwritev = os.pwritev

        def short(number: int, parts: list[memoryview], offset: int) -> int:
            if len(parts[-1]) > 1000:
                if len(parts[-1]) < 200_000:
                    raise OSError(code, os.strerror(code))
                parts = [*parts[:-1], parts[-1][:100_000]]
            return pwritev(number, parts, offset)

        put(store, 0, "before")
        monkeypatch.setattr(os, "pwritev", short)
        assert not put(store, 1, torch.zeros(75_000)) and not put(store, 2, "after")
        assert store.full == os.strerror(code)
        assert got(store, 0) == "before" and got(store, 1) is None and store.entries == 1

    def test_not_even_the_header_can_be_written(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = tmp_path / "image"
        source.write_bytes(b"one")
        put(store, 0, "before", source)

        def none(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(os, "pwritev", none)
        assert not put(store, 1, "after") and got(store, 0) == "before"
        source.write_bytes(b"other")
        assert got(store, 0) is None

    def test_an_earlier_runs_reason_does_not_count(self, tmp_path: Path) -> None:
        store = Store.create(8, MIB, tmp_path, "key")
        assert put(store, 0, "small") and not put(store, 1, torch.zeros(MIB)) and store.full
        store.close()
        larger = Store.create(8, 8 * MIB, tmp_path, "key")
        assert larger.full is None and got(larger, 0) == "small" and put(larger, 1, torch.zeros(MIB))


class TestClosing:
    def test_a_closed_store_is_empty_and_its_views_stay_valid(self, store: Store) -> None:
        put(store, 0, torch.ones(30_000))
        tensor = got(store, 0)
        store.close()
        store.close()
        gc.collect()
        assert got(store, 0) is None and not put(store, 1, 0)
        assert (store.used, store.entries, store.full) == (0, 0, None)
        assert tensor.sum() == 30_000

    def test_it_holds_neither_descriptors_nor_mappings(self, folder: Path | None) -> None:
        def held() -> tuple[int, int]:
            gc.collect()
            maps = Path("/proc/self/maps").read_text()
            return len(os.listdir("/proc/self/fd")), maps.count("pipediag") + maps.count("key.cache")

        before = held()
        for _ in range(5):
            store = Store.create(8, MIB, folder, "key")
            put(store, 0, torch.ones(30_000))
            assert got(store, 0) is not None
            store.close()
        assert held() == before

    def test_threads_may_use_it_meanwhile(self, store: Store) -> None:
        failed: list[BaseException] = []

        def use() -> None:
            try:
                for round_ in range(200):
                    index = round_ % 8
                    put(store, index, torch.full((5000,), index))
                    value = got(store, index)
                    assert value is None or (value == index).all()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        store.close()
        for thread in threads:
            thread.join()
        assert not failed


def test_a_copied_loader_shares_the_store(store: Store) -> None:
    assert copy.deepcopy([store])[0] is store


def test_it_may_be_larger_than_the_memory() -> None:
    store = Store.create(8, 1 << 42, None, "")
    assert put(store, 0, torch.ones(30_000)) and got(store, 0).sum() == 30_000


def test_other_platforms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(UsageError, match="on Linux only"):
        Store.create(1, 1, None, "")


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "get", "change", "reopen"]),
        st.integers(0, 5),
        st.sampled_from([1, 40, 900, 2500, 9000]),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(steps, st.booleans())
def test_it_behaves_as_a_dict_does(steps: list[tuple[str, int, int]], in_folder: bool) -> None:
    """Values are put, got, written into, and their files changed, in any order, in memory and over several runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = Store.create(6, 300_000, folder if in_folder else None, "key")
        sources = [folder / f"source{index}" for index in range(6)]
        for source in sources:
            source.write_bytes(b"")
        model: dict[int, torch.Tensor] = {}
        changes = 0
        for number, (step, index, size) in enumerate(steps):
            if step == "put":
                value = torch.full((size,), number)
                accepted = put(store, index, [value, value[:1]], sources[index])
                assert accepted == (index not in model and store.full is None)
                if accepted:
                    model[index] = value
            elif step == "change":
                sources[index].write_bytes(bytes(sources[index].stat().st_size + 1))
                changes += index in model
                model.pop(index, None)
                assert got(store, index) is None
            elif step == "reopen" and in_folder:
                store.close()
                store = Store.create(6, 300_000, folder, "key")
                changes = 0
            for each in range(6):
                found = got(store, each)
                assert (found is None) == (each not in model)
                if found is not None:
                    assert torch.equal(found[0], model[each]) and torch.equal(found[1], model[each][:1])
            assert (store.entries, store.changed) == (len(model), changes)
        store.close()
