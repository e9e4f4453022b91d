"""Leak checkers for commands that end badly, and the page that counts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .leaks import Leaks

#: Where pytest's cache has whether each row held when it last ran.
_LAST = "faults/held"
_held: set[str] = set()
_carried_out: set[str] = set()


@pytest.fixture
def leaks(tmp_path: Path) -> Iterator[Leaks]:
    with TemporaryDirectory(prefix="leaks-") as temporary:  # short: sockets are made in it
        checker = Leaks(tmp_path, Path(temporary))
        yield checker
        checker.end()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note whether a row of the table held; in the process that hears of all."""
    name = report.nodeid.partition("test_table.py::test_fault[")[2].removesuffix("]")
    if name and report.when == "call":
        _carried_out.add(name)
        if report.passed:
            _held.add(name)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep which rows held when they last ran, and write the page if asked to, once every row has run."""
    from .page import WRITES, write
    from .table import FAULTS

    cache = getattr(session.config, "cache", None)
    if cache is None or hasattr(session.config, "workerinput") or not _carried_out:
        return
    last = {**cache.get(_LAST, {}), **{name: name in _held for name in _carried_out}}
    cache.set(_LAST, last)
    if os.environ.get(WRITES) == "1":
        if missing := {fault.id for fault in FAULTS} - last.keys():
            print(f"\nthe page is not written: {len(missing)} rows have never run")
        else:
            write(name for name, held in last.items() if held)
