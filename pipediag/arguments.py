"""Check numbers that a caller passes to pipediag's functions."""

from __future__ import annotations

import math
import numbers
from typing import Any

from .errors import UsageError


def positive(name: str, value: Any, unit: str) -> float:
    """Return the value if it is a positive, finite number; ``unit`` is for the message.

    Raises:
        UsageError: it is not. A bool is no number here.
    """
    if _is(numbers.Real, value) and math.isfinite(value) and value > 0:
        return float(value)
    raise UsageError(f"{name} is in {unit} and must be positive and finite, not {value!r}")


def at_least(least: int, name: str, value: Any) -> int:
    """Return the value if it is a whole number of at least ``least``.

    Raises:
        UsageError: it is not. A bool is no number here.
    """
    if _is(numbers.Integral, value) and value >= least:
        return int(value)
    raise UsageError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
