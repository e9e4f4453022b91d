"""Leak checkers for commands that end badly."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .leaks import Leaks


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell ignores Ctrl-C in what it starts in the background, and processes inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def leaks(tmp_path: Path) -> Iterator[Leaks]:
    with TemporaryDirectory(prefix="leaks-") as temporary:  # short: sockets are made in it
        checker = Leaks(tmp_path, Path(temporary))
        yield checker
        checker.end()
