"""The end of an analysis inside pytest is none of a test's failures."""

from __future__ import annotations

import sys

import pytest
from _pytest.outcomes import Exit

from pipediag.errors import AnalysisOver, analysis_over


def test_pytest_ends_at_its_own_kind_of_end(monkeypatch: pytest.MonkeyPatch) -> None:
    over = analysis_over("settled")
    assert isinstance(over, AnalysisOver) and isinstance(over, Exit)
    assert over.reason == "settled" and over.returncode == 0 and over.msg == str(AnalysisOver("settled"))
    monkeypatch.delitem(sys.modules, "_pytest.outcomes")
    assert type(analysis_over("settled")) is AnalysisOver
