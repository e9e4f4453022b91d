"""Errors in one line, and whose code raised them."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch._utils import ExceptionWrapper
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from pipediag.frames import (
    in_one_line,
    in_package,
    is_installed,
    is_users,
    traceback_of,
    users_part,
    users_text,
)
from pipediag.loop.wrappers import StagedDataset
from pipediag.replay.record.batches import fetched


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError("no\nfor two reasons"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (SyntaxError("bad", ("x.py", 1, 2, "a b")), "SyntaxError: bad"),
    ],
)
def test_an_error_in_one_line(error: Exception, line: str) -> None:
    assert in_one_line(error) == line


@pytest.mark.parametrize(
    "more", ["", "\nreasons:\nit is empty", "\n[Traceback (most recent call last):\nOSError: x\n]"]
)
def test_a_workers_error_is_the_original(more: str) -> None:
    try:
        raise LookupError(f"sample 3 is damaged{more}")
    except LookupError:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(LookupError) as caught:
        wrapped.reraise()
    assert in_one_line(caught.value) == "LookupError: sample 3 is damaged"


class Damaged:
    def __getitem__(self, index: int) -> int:
        raise OSError(f"sample {index} is damaged")


class Passing:
    samples = staticmethod(partial(fetched, Damaged()))


def lines_of(dataset: Any) -> list[str]:
    """Return the traceback of the first batch, as a worker sends it and as the main process prints it."""
    try:
        _MapDatasetFetcher(dataset, True, list, False).fetch([3])
    except OSError as error:
        sent = ExceptionWrapper(where="in DataLoader worker process 0")
        texts = [str(users_text(OSError(sent.exc_msg))), *traceback.format_exception(users_part(error))]
        return "".join(texts).splitlines()
    raise AssertionError("it is damaged")


def test_tracebacks_of_a_wrapped_dataset_are_the_plain_ones() -> None:
    plain = lines_of(Damaged())
    assert lines_of(StagedDataset(Passing())) == plain and sum("fetch.py" in line for line in plain) >= 2


def _fails(error: Any, *args: Any) -> Any:
    raise RuntimeError("the planted protocol")


@dataclass(frozen=True)
class Frozen(Exception):
    text: str


class Lying(Exception):
    __traceback__ = __cause__ = __context__ = property(_fails)  # type: ignore[assignment]
    with_traceback = __setattr__ = __bool__ = __str__ = __repr__ = _fails  # type: ignore[assignment]


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        return _fails(name) if name in ("__name__", "__qualname__", "__module__") else super().__getattribute__(name)


Unnamed = Nameless("Unnamed", (Exception,), {})


#: With the end of their one line. None is an argument: pytest shows those of a test that fails.
ODD = {"frozen": (Frozen("no"), "Frozen: no"), "lying": (Lying("no"), "Lying"), "nameless": (Unnamed("no"), "Unnamed")}


@pytest.mark.parametrize("name", ODD)
def test_an_error_whose_class_allows_or_tells_nothing(name: str) -> None:
    try:
        StagedDataset(Raises(ODD[name][0]))[0]
    except Exception as error:
        assert (users_part(error) is error, users_text(error) is error) == (True, True)
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(traceback_of(error))]
        assert files == [__file__, __file__]
        assert in_one_line(error).endswith(ODD[name][1])


class Raises:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def sample(self, index: int) -> Any:
        raise self.error


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups are of Python 3.11")
def test_the_parts_of_a_group() -> None:
    with pytest.raises(LookupError) as caught:
        StagedDataset(Raises(LookupError("no")))[0]
    group = ExceptionGroup("several", [caught.value])  # noqa: F821
    assert "wrappers.py" in "".join(traceback.format_exception(group))
    assert "wrappers.py" not in "".join(traceback.format_exception(users_part(group)))


def test_what_pip_has_put_into_a_folder_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "shapes-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes\nVersion: 1.0\n")
    (about / "RECORD").write_text("shapes/__init__.py,,\nshapes_extra.py,,\nshapes-1.0.dist-info/METADATA,,\n")
    files = [str(tmp_path / name) for name in ("shapes/round.py", "shapes_extra.py", "train.py", "shapes2/round.py")]
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [*map(is_installed, files)] == [True, True, False, False]
    assert [*map(is_users, files)] == [False, False, True, True]
    assert in_package(files[0]) == "shapes/round.py"
