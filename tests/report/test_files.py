"""A file is written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from pipediag.report.files import write_whole


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    write_whole(str(tmp_path / "x"), b"new")
    assert (tmp_path / "x").read_bytes() == b"new" and mode(tmp_path / "x") == mode(tmp_path / "other")


def test_an_earlier_one_keeps_its_mode_and_its_name(tmp_path: Path) -> None:
    file, link = tmp_path / "x", tmp_path / "link"
    file.write_bytes(b"a longer text")
    file.chmod(0o640)
    link.symlink_to(file)
    write_whole(str(link), b"new")
    assert file.read_bytes() == b"new" and mode(file) == 0o640 and link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "x"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "x").write_bytes(b"last week's")
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        write_whole(str(tmp_path / "x"), b"new")
    assert (tmp_path / "x").read_bytes() == b"last week's" and os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EBUSY])
def test_a_file_that_cannot_be_replaced_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fixed(*args: object) -> None:
        raise OSError(number, "fixed")

    (tmp_path / "x").write_bytes(b"a longer text")
    monkeypatch.setattr(os, "replace", fixed)
    write_whole(str(tmp_path / "x"), b"new")
    assert (tmp_path / "x").read_bytes() == b"new" and os.listdir(tmp_path) == ["x"]


def test_what_is_no_ordinary_file_is_written_in_place() -> None:
    write_whole(os.devnull, b"new")
    assert not stat.S_ISREG(os.stat(os.devnull).st_mode)
