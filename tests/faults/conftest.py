"""Leak checkers for commands that end badly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .leaks import Leaks


@pytest.fixture
def leaks(tmp_path: Path) -> Iterator[Leaks]:
    with TemporaryDirectory(prefix="leaks-") as temporary:  # short: sockets are made in it
        checker = Leaks(tmp_path, Path(temporary))
        yield checker
        checker.end()
