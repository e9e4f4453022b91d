"""The file of results: found again by every process, whole or not at all, never another user's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.errors import UsageError
from pipediag.memo import arena as arenas
from pipediag.memo.arena import Arena

KEYS = [bytes([number]) * 16 for number in range(40)]


def found(arena: Arena, key: bytes) -> tuple[Any, bytes] | None:
    entry = arena.find(key)
    return None if entry is None else (entry.head, bytes(entry.body))


def test_what_is_added_is_found() -> None:
    arena = Arena.create(4 << 20)
    for number, key in enumerate(KEYS):
        assert arena.find(key) is None
        assert arena.add(key, ("head", number), [b"abc" * number, bytearray(5)])
    assert not arena.add(KEYS[3], "another", [])
    for number, key in enumerate(KEYS):
        assert found(arena, key) == (("head", number), b"abc" * number + bytes(5))
    assert arena.entries == len(KEYS) and 0 < arena.used < 4 << 20 and not arena.full


def test_keys_with_the_same_beginning_are_apart() -> None:
    arena = Arena.create(1 << 20)
    keys = [bytes(8) + bytes([number]) * 8 for number in range(9)]
    for number, key in enumerate(keys):
        assert arena.add(key, number, [])
    assert [found(arena, key) for key in keys] == [(number, b"") for number in range(9)]


def test_an_entry_is_read_only() -> None:
    arena = Arena.create(1 << 20)
    arena.add(KEYS[0], None, [b"pixels"])
    entry = arena.find(KEYS[0])
    assert entry is not None and entry.body.readonly


def test_one_too_large_is_skipped_and_the_others_go_on() -> None:
    arena = Arena.create(4 << 20)
    assert not arena.add(KEYS[0], None, [bytes(5 << 20)])
    assert arena.add(KEYS[1], None, [bytes(3 << 20)])
    assert not arena.add(KEYS[2], None, [bytes(2 << 20)]), "it does not fit beside the other"
    assert not arena.full and arena.add(KEYS[3], None, [b"small"])


def test_the_limit_holds() -> None:
    arena = Arena.create(256 << 10)
    kept = sum(arena.add(key, None, [bytes(20 << 10)]) for key in KEYS)
    assert 0 < kept < 13 and arena.full == "the limit is reached" and arena.used <= 256 << 10
    assert all(found(arena, key) is not None for key in KEYS[:kept])


def test_memory_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena.create(1 << 20)
    monkeypatch.setattr(arenas, "free_memory", lambda: 100)
    assert not arena.add(KEYS[0], None, [bytes(1000)]) and arena.full == "little memory is left"


def add_some(arena: Arena, begin: int) -> None:
    for number in range(begin, begin + 10):
        arena.add(KEYS[number], number, [bytes([number]) * 5000])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_it(method: str) -> None:
    arena = Arena.create(4 << 20)
    context = multiprocessing.get_context(method)
    children = [context.Process(target=add_some, args=(arena, begin)) for begin in (0, 5, 15)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert arena.entries == 25
    assert all(found(arena, KEYS[number]) == (number, bytes([number]) * 5000) for number in range(25))


def die_while_writing(arena: Arena) -> None:
    native = os.pwrite

    def dying(number: int, data: bytes, offset: int) -> int:
        if len(data) == 16:  # a slot of the index: half of it is written
            native(number, data[:8], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return native(number, data, offset)

    arenas.os.pwrite = dying  # type: ignore[attr-defined, assignment]
    arena.add(KEYS[0], "killed", [bytes(100)])


def test_a_killed_writer_leaves_nothing_behind() -> None:
    arena = Arena.create(4 << 20)
    child = multiprocessing.get_context("fork").Process(target=die_while_writing, args=(arena,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert arena.find(KEYS[0]) is None and arena.entries == 0
    assert arena.add(KEYS[0], "whole", [b"x"]) and found(arena, KEYS[0]) == ("whole", b"x")


class TestInAFolder:
    def test_the_next_run_finds_it(self, tmp_path: Path) -> None:
        first = Arena.create(1 << 20, tmp_path / "kept")
        assert first.add(KEYS[0], {"a": 1}, [b"12345678" * 3, b"tail"])
        file = tmp_path / "kept" / "memo.cache"
        assert file.stat().st_mode & 0o777 == 0o600
        for nbytes in (1 << 20, 4 << 20, 1 << 19):
            later = Arena.create(nbytes, tmp_path / "kept")
            assert found(later, KEYS[0]) == ({"a": 1}, b"12345678" * 3 + b"tail")

    def test_an_entry_that_the_disk_has_lost_is_made_again(self, tmp_path: Path) -> None:
        Arena.create(1 << 20, tmp_path).add(KEYS[0], None, [b"x" * 1000])
        later = Arena.create(1 << 20, tmp_path)
        place = (tmp_path / "memo.cache").read_bytes().index(b"x" * 1000)
        os.pwrite(later.number, bytes(64), place + 128)
        assert later.find(KEYS[0]) is None
        assert later.add(KEYS[0], None, [b"y"]) and found(later, KEYS[0]) == (None, b"y")

    @pytest.mark.parametrize("bit", range(0, 64, 7))
    def test_one_bit_that_the_disk_has_changed(self, tmp_path: Path, bit: int) -> None:
        Arena.create(1 << 20, tmp_path).add(KEYS[0], None, [b"x" * 1000])
        later = Arena.create(1 << 20, tmp_path)
        place = (tmp_path / "memo.cache").read_bytes().index(b"x" * 1000) + 128 + bit // 8
        os.pwrite(later.number, bytes([ord("x") ^ 1 << bit % 8]), place)
        assert later.find(KEYS[0]) is None

    @pytest.mark.parametrize("place", [1 << 30, -(1 << 20), 0], ids=["behind the file", "before it", "in the index"])
    def test_an_index_that_names_another_place(self, tmp_path: Path, place: int) -> None:
        """Reading behind the end of the file would end the process."""
        Arena.create(1 << 30, tmp_path).add(KEYS[0], None, [b"x" * 1000])
        later = Arena.create(1 << 30, tmp_path)
        slot = arenas._INDEX + 2 * (arenas._tag(KEYS[0]) & (later._slots - 1)) + 1
        word = place // arenas._UNIT << arenas._SIZE_BITS | 1 << 4
        os.pwrite(later.number, struct.pack("=q", word), 8 * slot)
        assert later.find(KEYS[0]) is None
        assert later.add(KEYS[0], None, [b"y"]) and found(later, KEYS[0]) == (None, b"y")

    @pytest.mark.parametrize("content", [b"", b"nonsense" * 100, struct.pack("=8s2q", b"pipediag", 3, 5)])
    def test_another_file_is_replaced(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "memo.cache").write_bytes(content)
        (tmp_path / "memo.cache").chmod(0o600)
        arena = Arena.create(1 << 20, tmp_path)
        assert arena.add(KEYS[0], None, [b"x"]) and found(Arena.create(1 << 20, tmp_path), KEYS[0]) == (None, b"x")

    def test_what_others_may_have_written_is_not_read(self, tmp_path: Path) -> None:
        Arena.create(1 << 20, tmp_path).add(KEYS[0], None, [b"x"])
        (tmp_path / "memo.cache").chmod(0o620)
        assert Arena.create(1 << 20, tmp_path).find(KEYS[0]) is None

    def test_what_another_user_owns_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        Arena.create(1 << 20, tmp_path).add(KEYS[0], None, [b"x"])
        user = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: user)
        with pytest.raises(UsageError, match="private to their owner"):
            Arena.create(1 << 20, tmp_path)

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").write_bytes(b"precious")
        (tmp_path / "memo.cache").symlink_to(tmp_path / "elsewhere")
        assert Arena.create(1 << 20, tmp_path).add(KEYS[0], None, [b"x"])
        assert (tmp_path / "elsewhere").read_bytes() == b"precious"

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match=r"results cannot be kept in .*; name a folder"):
            Arena.create(1 << 20, tmp_path / "file")


@given(st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1, max_size=4), st.booleans())
def test_a_damaged_file_gives_what_was_put_in_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]], early: bool
) -> None:
    """Bytes are changed anywhere, or ``early`` in the file, where its own numbers and its index are."""
    folder = tmp_path_factory.mktemp("damaged")
    arena = Arena.create(1 << 20, folder)
    kept = {key: (number, bytes([number]) * 999) for number, key in enumerate(KEYS[:9])}
    for key, (head, body) in kept.items():
        assert arena.add(key, head, [body])
    del arena
    (path,) = folder.iterdir()
    with path.open("r+b") as file:
        length = 256 if early else path.stat().st_size
        for place, change in damage:
            file.seek(place % length)
            byte = file.read(1)[0]
            file.seek(place % length)
            file.write(bytes([byte ^ change]))
    try:
        again = Arena.create(1 << 20, folder)
    except UsageError as error:
        assert str(folder) in str(error)
        return
    for key, value in kept.items():
        assert found(again, key) in (None, value)
    assert isinstance(again.add(KEYS[20], "new", [b"new"]), bool)
