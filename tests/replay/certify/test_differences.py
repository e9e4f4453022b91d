"""Differences within the tolerances pass, and no others."""

from __future__ import annotations

import math

import pytest

from pipediag.replay.certify.differences import FLOAT_TOLERANCE, Difference


@pytest.mark.parametrize(
    ("difference", "equal", "within"),
    [
        (Difference(), True, True),
        (Difference(largest=FLOAT_TOLERANCE), False, True),
        (Difference(largest=1.01 * FLOAT_TOLERANCE), False, False),
        (Difference(largest=1.01 * FLOAT_TOLERANCE, off=1e-9), False, False),
        (Difference(largest=1e-3, tolerance=2e-3), False, True),
        (Difference(largest=math.inf), False, False),
        (Difference(largest=math.nan), False, False),
        (Difference(floating=False), True, True),
        (Difference(largest=1, off=1e-3, floating=False), False, True),
        (Difference(largest=1, off=1.01e-3, floating=False), False, False),
        (Difference(largest=2, off=1e-9, floating=False), False, False),
    ],
)
def test_tolerances(difference: Difference, equal: bool, within: bool) -> None:
    assert difference.equal is equal
    assert difference.within is within
