"""Frames are taken in as they were sent, and only from who knows the secret: the network in between is the test's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.ladder.ranks import connection as module
from pipediag.ladder.ranks.connection import OWN, Connection, new_secret, read_secret

SECRET = b"s" * 32
NONCE, HEAD = module._NONCE, module._HEAD.size


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    return here, there


@contextmanager
def network(to_0: bytes = SECRET) -> Iterator[tuple[Connection, Connection, socket.socket, socket.socket]]:
    """Both ends, and the wires that lead to them: what one end sends arrives at the other only if the test says so."""
    (near_0, wire_0), (near_1, wire_1) = _connected(), _connected()
    end_0, end_1 = Connection(near_0, SECRET, leads=True), Connection(near_1, to_0, leads=False)
    with closing(wire_0), closing(wire_1), closing(end_0), closing(end_1):
        wire_1.sendall(wire_0.recv(NONCE))
        wire_0.sendall(wire_1.recv(NONCE))
        assert [*end_0.received(), *end_1.received()] == []
        yield end_0, end_1, wire_0, wire_1


def carried(source: socket.socket, length: int) -> bytes:
    return source.recv(HEAD + length, socket.MSG_WAITALL)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5), st.integers(1, 50))
@settings(max_examples=25)
def test_frames_arrive_whole_however_they_are_cut(contents: list[bytes], part: int) -> None:
    with network() as (end_0, end_1, wire_0, wire_1):
        for content in contents:
            end_1.send(content)
        stream = b"".join(carried(wire_1, len(content)) for content in contents)
        got = []
        for begin in range(0, len(stream), part):
            wire_0.sendall(stream[begin : begin + part])
            got += end_0.received()
        assert got == contents and end_0.proven


def test_what_is_sent_early_waits_for_the_other_number() -> None:
    near, wire = _connected()
    with closing(wire), closing(Connection(near, SECRET, leads=False)) as end:
        end.send(b"joined")
        assert len(wire.recv(1000)) == NONCE, "nothing but its own number"
        wire.sendall(bytes(NONCE))
        assert [*end.received()] == []
        assert len(wire.recv(1000)) == HEAD + 6


def refused(end: Connection) -> bool:
    try:
        return [*end.received()] == []
    except ConnectionError:
        return True


def test_no_change_is_taken_in() -> None:
    """Each bit of a frame counts."""
    for bit in range(8 * (HEAD + 3)):
        with network() as (end_0, end_1, wire_0, wire_1):
            end_1.send(b"one")
            frame = bytearray(carried(wire_1, 3))
            frame[bit // 8] ^= 1 << bit % 8
            wire_0.sendall(frame)
            assert refused(end_0) and not end_0.proven


def test_frames_are_neither_repeated_nor_moved_nor_left_out() -> None:
    for order, taken in (((0, 0), 1), ((1, 0), 0), ((0, 2), 1), ((1,), 0)):
        with network() as (end_0, end_1, wire_0, wire_1):
            for content in (b"one", b"two", b"six"):
                end_1.send(content)
            frames = [carried(wire_1, 3) for _ in range(3)]
            wire_0.sendall(b"".join(frames[number] for number in order))
            got = []
            with pytest.raises(ConnectionError, match="not of this job"):
                for content in end_0.received():
                    got.append(content)
            assert got == [b"one"][:taken]


def test_a_frame_is_not_sent_back_or_into_another_connection() -> None:
    with network() as (_, end_1, _, wire_1):
        end_1.send(b"one")
        frame = carried(wire_1, 3)
        wire_1.sendall(frame)
        with pytest.raises(ConnectionError, match="not of this job"):
            [*end_1.received()]
        with network() as (other, _, wire, _), pytest.raises(ConnectionError, match="not of this job"):
            wire.sendall(frame)
            [*other.received()]


def test_who_sends_back_what_he_gets_proves_nothing() -> None:
    near, wire = _connected()
    with closing(wire), closing(Connection(near, SECRET, leads=True)) as end:
        end.send(b"epoch\n0")
        wire.sendall(wire.recv(NONCE))
        assert [*end.received()] == []
        wire.sendall(carried(wire, 7))
        with pytest.raises(ConnectionError, match="not of this job"):
            [*end.received()]


def test_another_secret_is_none() -> None:
    with network(to_0=b"x" * 32) as (end_0, end_1, wire_0, wire_1):
        end_1.send(b"one")
        wire_0.sendall(carried(wire_1, 3))
        with pytest.raises(ConnectionError, match="not of this job"):
            [*end_0.received()]


def test_who_has_proven_nothing_cannot_fill_the_memory() -> None:
    with network() as (end_0, _, wire_0, _):
        wire_0.sendall(module._HEAD.pack(1 << 20, bytes(32)))
        with pytest.raises(ConnectionError, match="too long"):
            [*end_0.received()]


def test_what_came_before_the_end_is_taken_in() -> None:
    with network() as (end_0, end_1, wire_0, wire_1):
        end_1.send(b"one")
        wire_0.sendall(carried(wire_1, 3))
        wire_0.shutdown(socket.SHUT_WR)
        assert [*end_0.received()] == [b"one"]
        with pytest.raises(ConnectionResetError):
            [*end_0.received()]


def test_the_secret_is_read_from_an_open_file_of_this_user() -> None:
    secret, told = new_secret(one_host=True)
    assert told.startswith("/proc/") and read_secret(told) == secret
    secret, told = new_secret(one_host=False)
    assert read_secret(told) == secret


def test_a_secret_of_the_users_own_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWN, "a text that all ranks know")
    secret, told = new_secret(one_host=False)
    assert read_secret(told) == secret != bytes.fromhex(told)
    for other in ("", "another text"):
        monkeypatch.setenv(OWN, other)
        assert read_secret(told) != secret


def test_no_other_file_is_read(tmp_path: Path) -> None:
    for told in ("", "/etc/passwd", str(tmp_path), "/proc/self/fd/0", "ab" * 31):
        with pytest.raises(ValueError, match="no secret"):
            read_secret(told)
    reading, writing = os.pipe()
    try:
        with pytest.raises(PermissionError):
            read_secret(f"/proc/{os.getpid()}/fd/{reading}")
    finally:
        os.close(reading)
        os.close(writing)
