"""Leak checkers for commands that end badly, and the page that counts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .leaks import Leaks

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
    """Write the page after a run of the whole table, if asked to."""
    from .page import WRITES, write
    from .table import FAULTS

    if os.environ.get(WRITES) == "1" and not hasattr(session.config, "workerinput"):
        missing = {fault.id for fault in FAULTS} - _carried_out
        if missing:
            print(f"\nthe page is not written: {len(missing)} rows were not carried out")
        else:
            write(_held)
