"""Numbers that make no sense are refused; the end of an analysis inside pytest is none of a test's failures."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

import numpy
import pytest
from _pytest.outcomes import Exit

from pipediag.errors import AnalysisOver, UsageError, analysis_over, at_least, positive


def test_pytest_ends_at_its_own_kind_of_end(monkeypatch: pytest.MonkeyPatch) -> None:
    over = analysis_over("settled")
    assert isinstance(over, AnalysisOver) and isinstance(over, Exit)
    assert over.reason == "settled" and over.returncode == 0 and over.msg == str(AnalysisOver("settled"))
    monkeypatch.delitem(sys.modules, "_pytest.outcomes")
    assert type(analysis_over("settled")) is AnalysisOver


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0, -1.0, True, "5", None, numpy.float64("nan"), 1j])
def test_not_positive(value: Any) -> None:
    with pytest.raises(UsageError, match=r"budget is in seconds.*positive and finite"):
        positive("budget", value, "seconds")


@pytest.mark.parametrize("value", [1, 0.5, numpy.float32(2), numpy.int64(3), Fraction(1, 2)])
def test_positive(value: Any) -> None:
    assert positive("budget", value, "seconds") == float(value)


@pytest.mark.parametrize("value", [math.nan, 0, -1, 1.5, 2.0, True, "5", None])
def test_not_whole(value: Any) -> None:
    with pytest.raises(UsageError, match=r"samples must be a whole number of at least 1"):
        at_least(1, "samples", value)


def test_whole() -> None:
    assert at_least(1, "samples", numpy.int64(3)) == 3 and at_least(0, "nbytes", 0) == 0
