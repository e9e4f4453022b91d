"""Which files are opened while a sample is made."""

from __future__ import annotations

import builtins
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipediag.ladder.probes.opened_files import OpenedFiles
from pipediag.session import Files


def figures(read: object, samples: int = 2) -> Files:
    files = OpenedFiles()
    for _ in range(samples):
        with files.watched():
            read()  # type: ignore[operator]
    return files.figures(samples)


def test_counts_sizes_and_endings(tmp_path: Path) -> None:
    large, small = tmp_path / "a.BIN", tmp_path / "b.txt"
    large.write_bytes(bytes(300))
    small.write_bytes(bytes(100))

    def read() -> None:
        with open(large, "rb") as one, small.open() as other:
            one.read(), other.read()

    assert figures(read) == Files(2.0, 200.0, {".bin": 2, ".txt": 2})


def test_libraries(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    np.save(tmp_path / "x.npy", np.zeros(4))

    def read() -> None:
        Image.open(tmp_path / "x.png").load()
        np.load(tmp_path / "x.npy")

    assert figures(read).endings == {".png": 2, ".npy": 2}


def test_paths_by_their_endings(tmp_path: Path) -> None:
    files = OpenedFiles()
    for name in ("a.JPG", "b.txt", "c.jpeg"):
        (tmp_path / name).write_bytes(b"x")
        with files.watched():
            (tmp_path / name).read_bytes()
    assert files.with_endings((".jpg", ".jpeg")) == [str(tmp_path / "a.JPG"), str(tmp_path / "c.jpeg")]


def test_written_files_do_not_count(tmp_path: Path) -> None:
    assert figures(lambda: (tmp_path / "x").write_text("x")) == Files()


def test_descriptors_opened_before_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with (tmp_path / "x").open() as file:
        assert figures(lambda: open(file.fileno(), closefd=False).close()) == Files()


def test_nothing_opened() -> None:
    assert figures(lambda: None) == Files()


def test_undone_after_an_error(tmp_path: Path) -> None:
    before = builtins.open, io.open
    with pytest.raises(FileNotFoundError), OpenedFiles().watched():
        assert builtins.open is not before[0]
        (tmp_path / "missing").read_text()
    assert (builtins.open, io.open) == before
