"""Fixtures that make the times of simulated loops exact."""

from __future__ import annotations

import pytest

from pipediag.ladder import settling, steering

from .simulated import POLL, STILL


@pytest.fixture
def no_first_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle no longer under a new rung than under others."""
    monkeypatch.setattr(steering, "_FIRST_SECONDS", 0.0)


@pytest.fixture
def exact_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll the workers at times whose sums are exact."""
    monkeypatch.setattr(settling, "_POLL", POLL)
    monkeypatch.setattr(settling, "_STILL", STILL)
