"""What is kept under a secret cannot be read, moved or replaced without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.ladder.ranks.sealed_store import SealedStore, new_secret, read_secret

from .ranks import Store


@given(st.text(), st.text(), st.binary(min_size=1, max_size=64))
@settings(max_examples=60, deadline=None)
def test_only_the_secret_opens_it(key: str, value: str, secret: bytes) -> None:
    if "\ud800" <= max(key + value, default="") <= "\udfff":
        return
    inner = Store()
    SealedStore(inner, secret).set(key, value)
    assert SealedStore(inner, secret).get(key) == value.encode()
    other = SealedStore(inner, secret[::-1] + b"x" if len(secret) < 64 else b"x")
    assert not other.check([key])


def test_what_a_stranger_moves_or_changes_is_refused() -> None:
    inner = Store()
    store = SealedStore(inner, b"secret")
    store.set("a", "one")
    store.set("b", "two")
    first, second = inner.entries
    inner.entries[first], inner.entries[second] = inner.entries[second], inner.entries[first]
    for key in ("a", "b"):
        with pytest.raises(ValueError, match="seal"):
            store.get(key)
    for garbage in (b"", b"zz", b"ab", b"\xff", inner.entries[second][:-2] + b"00"):
        inner.entries[first] = garbage
        with pytest.raises(ValueError):
            store.get("a")


def test_the_secret_is_read_from_an_open_file_of_this_user() -> None:
    secret, told = new_secret(one_host=True)
    assert told.startswith("/proc/") and read_secret(told) == secret
    secret, told = new_secret(one_host=False)
    assert read_secret(told) == secret


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
