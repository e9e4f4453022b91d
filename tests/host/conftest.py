"""Fixtures of the tests of this package."""

from __future__ import annotations

import pytest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test changes."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now
