from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipediag.watch.sampling import Frame
from pipediag.watch.sources import Sources

SOURCE = """def plain():
    def inner():
        yield 1
    return inner()

class Batches:
    def __iter__(self):
        for batch in self.loader:
            yield batch  # é
"""


def test_lines_and_generators_of_a_process_in_a_container(tmp_path: Path) -> None:
    (tmp_path / "root/app").mkdir(parents=True)
    (tmp_path / "root/app/train.py").write_text(SOURCE, encoding="utf-8")
    source = Sources(str(tmp_path / "root"), "/app")
    lines = {line: source.is_generator(Frame("f", "/app/train.py", line)) for line in (1, 3, 4, 6, 8, 99)}
    assert lines == {1: False, 3: True, 4: False, 6: False, 8: True, 99: False}
    assert source.text(Frame("f", "train.py", 9)) == "yield batch  # é"
    assert source.text(Frame("f", "/app/train.py", 99)) == source.text(Frame("f", "/app/none.py", 1)) == ""


@pytest.mark.parametrize("name", ["/dev/zero", "fifo", "folder", "large.py", "no\0name", "no\udcffname"])
def test_a_process_may_name_any_file_as_its_source(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large.py").write_text("1\n" * 1_000_001)
    assert Sources("", str(tmp_path)).text(Frame("f", name, 1)) == ""


@pytest.mark.parametrize("deep", ["+".join(["1"] * 2000), "-" * 90_000 + "1", "(" * 300 + ")" * 300])
def test_a_source_may_be_nested_deep(tmp_path: Path, deep: str) -> None:
    (tmp_path / "train.py").write_text(f"def f():\n    x = {deep}\n")
    assert Sources("", str(tmp_path)).is_generator(Frame("f", "train.py", 2)) is False


def test_places_are_those_that_the_user_writes() -> None:
    source = Sources("", "/app")
    assert source.where(Frame("f", "/app/data/sets.py", 3)) == "data/sets.py:3"
    assert source.where(Frame("f", "/apple/x.py", 3)) == "/apple/x.py:3"
    assert source.where(Frame("f", "/e/lib/python3.9/site-packages/PIL/Image.py", 9)) == "PIL/Image.py:9"
    assert Sources().where(Frame("f", "/app/x.py", 3)) == "/app/x.py:3"
