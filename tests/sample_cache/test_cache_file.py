"""A store in a folder: later runs read it, other users cannot, and what does not fit is made anew, never read."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipediag.errors import UsageError
from pipediag.sample_cache import cache_file
from pipediag.sample_cache.cache_file import UNIT, place, places
from pipediag.sample_cache.records import encode
from pipediag.sample_cache.store import Store

from .test_store import got

MIB = 1 << 20
SAMPLES = 12


def opened(folder: Path, key: str = "key", samples: int = SAMPLES, nbytes: int = 2 * MIB) -> Store:
    return Store.create(samples, nbytes, folder, key)


def value(index: int) -> torch.Tensor:
    return torch.full((300 * (index + 1) ** 2 % 20_000,), index)


def filled(folder: Path, **options: Any) -> Path:
    store = opened(folder, **options)
    assert all(store.put(index, encode(value(index)), []) for index in range(SAMPLES))
    store.close()
    return folder / "key.cache"


def test_the_next_run_finds_everything(tmp_path: Path) -> None:
    filled(tmp_path)
    store = opened(tmp_path)
    assert all(torch.equal(got(store, index), value(index)) for index in range(SAMPLES))
    assert store.entries == SAMPLES and not store.put(0, encode(1), [])


def test_a_folder_that_does_not_exist_is_made(tmp_path: Path) -> None:
    assert filled(tmp_path / "a" / "b").exists()


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert filled(tmp_path).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_it_takes_the_room_of_its_entries_only(tmp_path: Path) -> None:
    found = filled(tmp_path, nbytes=1 << 40).stat()
    assert found.st_size > 1 << 40 and found.st_blocks * 512 < 3 * MIB


def test_stores_with_other_keys_are_separate(tmp_path: Path) -> None:
    filled(tmp_path)
    assert opened(tmp_path, "other").entries == 0 and opened(tmp_path).entries == SAMPLES


def test_a_store_of_another_dataset_is_made_anew(tmp_path: Path) -> None:
    filled(tmp_path)
    assert opened(tmp_path, samples=SAMPLES + 1).entries == 0


def test_it_grows_for_a_run_with_a_higher_limit_while_another_reads(tmp_path: Path) -> None:
    filled(tmp_path)
    small, large = opened(tmp_path), opened(tmp_path, nbytes=8 * MIB)
    assert large.entries == SAMPLES
    for index in range(SAMPLES):
        large._drop(large._open, index, large._open.word(index), cache_file.CHANGED)
    assert all(large.put(index, encode(torch.full((50_000,), index)), []) for index in range(SAMPLES))
    assert large.used > 4 * MIB
    assert all((got(store, index) == index).all() for store in (small, large) for index in range(SAMPLES))


def test_a_file_replaced_by_another_run_goes_on_serving_those_that_have_it(tmp_path: Path) -> None:
    filled(tmp_path)
    old = opened(tmp_path)
    (tmp_path / "key.cache").unlink()
    new = opened(tmp_path)
    assert new.entries == 0 and torch.equal(got(old, 3), value(3))


def test_a_file_that_is_replaced_while_it_is_opened_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def replaced_meanwhile(number: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        (tmp_path / "key.cache").unlink()
        filled(tmp_path)
        flock(number, operation)

    filled(tmp_path)
    monkeypatch.setattr(fcntl, "flock", replaced_meanwhile)
    store = opened(tmp_path, samples=SAMPLES)
    assert store.entries == SAMPLES and torch.equal(got(opened(tmp_path), 3), value(3))
    assert os.path.samestat((tmp_path / "key.cache").stat(), os.fstat(store._open.file.number))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def link(path: Path) -> None:
    path.rename(path.with_name("target"))
    path.symlink_to(path.with_name("target"))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def share(path: Path) -> None:
    path.chmod(0o644)


def flip(at: int) -> Callable[[Path], None]:
    """Change the byte ``at``."""

    def flipped(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0x5A]))

    return flipped


def unfinished(path: Path) -> None:
    """As left by a process killed before it wrote the first words."""
    with path.open("r+b") as file:
        file.write(bytes(64))


@pytest.mark.parametrize(
    "spoil",
    [
        *(truncate, empty, link, pipe, share, unfinished),
        *(pytest.param(flip(8 * word), id=f"word {word}") for word in range(8)),
        pytest.param(flip(8 * cache_file.SIZE + 7), id="size"),
        pytest.param(flip(8 * cache_file.TAIL + 7), id="tail"),
        pytest.param(flip(8 * cache_file.TAIL + 2), id="tail inside"),
        pytest.param(flip(8 * cache_file.INDEX + 7), id="offset"),
    ],
)
def test_a_file_that_does_not_fit_is_made_anew(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    spoil(filled(tmp_path))
    store = opened(tmp_path)
    assert store.entries == 0 and store.put(0, encode(value(0)), [])
    assert (tmp_path / "key.cache").stat().st_mode & 0o777 == 0o600
    assert torch.equal(got(opened(tmp_path), 0), value(0))


def write_word(path: Path, at: int, word: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(word.to_bytes(8, "little"))


def test_a_last_entry_that_ends_after_the_last_claim_does_not_fit(tmp_path: Path) -> None:
    """The next entry would be written into it."""
    path = filled(tmp_path)
    last, _ = places(opened(tmp_path)._open.word(SAMPLES - 1))
    write_word(path, 8 * cache_file.TAIL, last + 64)
    assert opened(tmp_path).entries == 0


@pytest.mark.parametrize("where", ["another entry", "between two entries"])
def test_a_place_of_something_else_is_a_miss(where: str, tmp_path: Path) -> None:
    path = filled(tmp_path)
    word = opened(tmp_path)._open.word(3)
    offset, size = places(word)
    write_word(path, 8 * cache_file.INDEX, word if where == "another entry" else place(offset + UNIT, size - UNIT))
    store = opened(tmp_path)
    assert got(store, 0) is None and store.damaged == 1 and torch.equal(got(store, 3), value(3))


def test_text_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "key.cache").write_text("pipediag" * 100_000)
    (tmp_path / "key.cache").chmod(0o600)
    assert opened(tmp_path).entries == 0


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_byte_never_changes_a_sample(seed: int, tmp_path: Path) -> None:
    """Every sample comes back as it was, or not at all, and can then be stored again."""
    path = filled(tmp_path)
    end = max(sum(places(opened(tmp_path)._open.word(index))) for index in range(SAMPLES))
    flip(random.Random(seed).randrange(8 * (cache_file.INDEX + SAMPLES) if seed % 2 else end))(path)
    store = opened(tmp_path)
    for _ in range(2):
        for index in range(SAMPLES):
            found = got(store, index)
            assert found is None or torch.equal(found, value(index))
            if found is None:
                store.put(index, encode(value(index)), [])
    later = opened(tmp_path)
    for index in range(SAMPLES):
        found = got(later, index)
        assert found is None or torch.equal(found, value(index))


def test_a_damaged_entry_is_dropped_and_counted(tmp_path: Path) -> None:
    path = filled(tmp_path)
    offset, _ = places(opened(tmp_path)._open.word(5))
    flip(offset + 1000)(path)
    store = opened(tmp_path)
    assert got(store, 5) is None and (store.damaged, store.changed, store.entries) == (1, 0, SAMPLES - 1)
    assert store.put(5, encode(value(5)), []) and torch.equal(got(store, 5), value(5))


def test_an_entry_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    store, calls = opened(tmp_path), []
    crc32 = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda *args: calls.append(args) or crc32(*args))
    assert all(torch.equal(got(store, 5), value(5)) for _ in range(3)) and len(calls) == 1


def test_an_entry_that_replaced_an_outdated_one_is_not_dropped_in_its_place(tmp_path: Path) -> None:
    filled(tmp_path)
    store = opened(tmp_path)
    store._drop(store._open, 5, store._open.word(4), cache_file.CHANGED)
    assert torch.equal(got(store, 5), value(5)) and store.changed == 0


def test_an_entry_that_claims_another_size_is_damaged(tmp_path: Path) -> None:
    path = filled(tmp_path)
    offset, _ = places(opened(tmp_path)._open.word(1))
    write_word(path, offset + 24, 60_000)
    store = opened(tmp_path)
    assert got(store, 1) is None and store.damaged == 1


def test_a_file_that_another_user_could_write_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that gives every file the same mode or owner."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match=r"samples cannot be kept in .*: its files cannot be made private"):
        opened(tmp_path)


def test_a_disk_too_full_for_the_index_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev = os.pwritev

    def full(number: int, parts: list[memoryview], offset: int) -> int:
        if offset > MIB:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(number, [parts[0]], offset)

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(UsageError, match="No space left on device"):
        opened(tmp_path, samples=1_000_000)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="samples cannot be kept in"):
        opened(tmp_path / "file")
    (tmp_path / "key.cache").mkdir()
    with pytest.raises(UsageError, match="samples cannot be kept in"):
        opened(tmp_path)


def aged(path: Path, days: float) -> Path:
    moment = time.time() - days * 24 * 3600
    os.utime(path, (moment, moment))
    return path


def test_files_that_no_run_has_used_for_a_month_are_removed(tmp_path: Path) -> None:
    for key in ("old", "recent", "open"):
        opened(tmp_path, key).close()
    in_use = opened(tmp_path, "open")
    aged(tmp_path / "old.cache", 31)
    aged(tmp_path / "recent.cache", 29)
    aged(tmp_path / "open.cache", 31)
    (tmp_path / "text.cache").write_text("somebody else's")
    (tmp_path / "text.cache").chmod(0o600)
    aged(tmp_path / "text.cache", 31)
    opened(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"recent.cache", "open.cache", "text.cache", "key.cache"}
    in_use.close()
    opened(tmp_path)
    assert not (tmp_path / "open.cache").exists()


def test_a_run_that_opens_a_file_uses_it(tmp_path: Path) -> None:
    aged(filled(tmp_path), 31)
    opened(tmp_path).close()
    assert opened(tmp_path, "other") and opened(tmp_path).entries == SAMPLES


def hold(store: Store, ready: Any) -> None:
    ready.set()
    time.sleep(60)


def test_a_file_is_in_use_as_long_as_a_worker_has_it(tmp_path: Path) -> None:
    store = opened(tmp_path, "workers")
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    worker = fork.Process(target=hold, args=(store, ready), daemon=True)
    worker.start()
    assert ready.wait(30)
    store.close()
    aged(tmp_path / "workers.cache", 31)
    opened(tmp_path)
    assert (tmp_path / "workers.cache").exists()
    worker.kill()
    worker.join()
    opened(tmp_path)
    assert not (tmp_path / "workers.cache").exists()


def test_what_earlier_runs_have_claimed_in_vain_is_free_again(tmp_path: Path) -> None:
    filled(tmp_path)
    for _ in range(100):
        store = opened(tmp_path)
        store._drop(store._open, 0, store._open.word(0), cache_file.CHANGED)
        assert store.put(0, encode(value(0)), []) and store.full is None
        store.close()
