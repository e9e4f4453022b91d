"""Numbers that make no sense are refused."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy
import pytest

from pipediag.errors import UsageError, at_least, positive


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
