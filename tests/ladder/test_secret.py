"""The job's secret reaches its ranks, and no other file is read for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipediag.ladder.ranks.connection import OWN, new_secret, read_secret


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
