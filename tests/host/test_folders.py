"""The scratch folder exists while its run does; the next run removes that of a killed one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from pipediag.host.folders import scratch_folder


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def abandoned(root: Path, name: str = "pipediag-dead", mode: int = 0o700) -> Path:
    folder = root / name
    folder.mkdir(mode=mode)
    (folder / "lock").touch()
    (folder / "order.json").write_text("{}")
    return folder


def test_a_folder_is_held_while_its_run_lasts(root: Path) -> None:
    with scratch_folder() as first, scratch_folder() as second:
        assert Path(first).parent == root and first != second
        assert os.path.isdir(first), "the second run has swept the folder of the first"
    assert not list(root.iterdir())


def test_the_folder_of_a_killed_run_is_swept(root: Path) -> None:
    abandoned(root)
    with scratch_folder() as folder:
        assert list(root.iterdir()) == [Path(folder)]


def test_nothing_else_is_swept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aside = root / "aside"
    aside.mkdir()
    (root / "pipediag-link").symlink_to(abandoned(aside))
    (root / "pipediag-file").touch()
    (root / "pipediag-unlocked").mkdir()
    abandoned(root, "pipediag-open").chmod(0o755)
    (abandoned(root, "pipediag-full") / "data").mkdir()
    os.mkfifo(root / "pipediag-fifo")
    abandoned(root, "others")
    before = sorted(root.iterdir())
    with scratch_folder():
        pass
    assert sorted(root.iterdir()) == before and (aside / "pipediag-dead" / "order.json").exists()
    theirs = abandoned(root, "pipediag-theirs")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with scratch_folder():
        pass
    assert theirs.exists()
