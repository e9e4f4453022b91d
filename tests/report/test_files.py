"""A file is written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipediag.errors import UsageError
from pipediag.report.files import check_writable, write_whole


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_its_owners(tmp_path: Path) -> None:
    write_whole(str(tmp_path / "x"), b"new")
    assert (tmp_path / "x").read_bytes() == b"new" and mode(tmp_path / "x") == 0o600


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


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """Neither under the name that the temporary file of this process could have, nor in place of a file."""
    (tmp_path / "victim").write_bytes(b"precious")
    for name in (f".pipediag-{os.getpid()}", f".pipediag-{os.getpid()}-0"):
        (tmp_path / name).symlink_to("victim")
    write_whole(str(tmp_path / "x"), b"new")
    assert (tmp_path / "victim").read_bytes() == b"precious" and (tmp_path / "x").read_bytes() == b"new"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's link")
def test_another_users_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "x").symlink_to("victim")
    os.lchown(tmp_path / "x", 12345, 12345)
    with pytest.raises(UsageError, match="a link of another user"):
        check_writable("-o", str(tmp_path / "x"))
    with pytest.raises(PermissionError):
        write_whole(str(tmp_path / "x"), b"new")
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_many_writers_of_equal_pids_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers share a folder, and not the numbers of processes."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    files = {str(tmp_path / f"{number}"): bytes([number]) * 10_000 for number in range(24)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda item: write_whole(*item), files.items()))
    assert {path: Path(path).read_bytes() for path in files} == files


def test_a_pipe_that_nobody_reads_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(UsageError, match="nobody reads"):
        check_writable("-o", str(tmp_path / "x"))
    with pytest.raises(OSError, match="nobody reads"):
        write_whole(str(tmp_path / "x"), b"new")


def test_a_check_leaves_nothing(tmp_path: Path) -> None:
    check_writable("-o", str(tmp_path / "x"))
    assert os.listdir(tmp_path) == []
