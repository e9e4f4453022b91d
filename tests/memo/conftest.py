"""Memos whose every call is worth keeping, and files that count as unchanged for long."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipediag.memo import keys
from pipediag.memo import memo as memos
from pipediag.memo.arena import Arena
from pipediag.memo.memo import Memo, Tally


class Seconds:
    """A clock on which every call takes long."""

    def __init__(self) -> None:
        self._now = itertools.count()

    def __call__(self) -> float:
        return float(next(self._now))


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "SETTLED", 0.0)


@pytest.fixture(autouse=True)
def worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is made fast, too."""
    monkeypatch.setattr(memos, "_READ_S", 0.0)
    monkeypatch.setattr(memos, "_BYTE_S", 0.0)


@pytest.fixture
def memo() -> Memo:
    return Memo(Arena.create(8 << 20), Tally(), Seconds())


@pytest.fixture
def both(memo: Memo) -> Callable[[Callable[[], Any]], Iterator[Any]]:
    """Return what a function returns plainly, on the first call under a memo, and on two later ones."""

    def results(function: Callable[[], Any]) -> Iterator[Any]:
        yield function()
        with memo.installed():
            for _ in range(3):
                yield function()

    return results


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
