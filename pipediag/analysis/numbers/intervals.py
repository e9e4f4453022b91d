"""Combine values with 95 % intervals. The estimators are in :mod:`.paired_windows`.

Standard library only: this runs between two windows inside the user's own process, where importing scipy would cost a
second and hundreds of threads' worth of memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % confidence interval; infinite if a single window says nothing about the spread."""

    value: float
    low: float
    high: float

    @property
    def arm(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2

    def shifted(self, by: float) -> Interval:
        return Interval(self.value + by, self.low + by, self.high + by)

    def widened(self, share: float) -> Interval:
        """Return the interval with both ends ``share`` of the value farther away."""
        return Interval(self.value, self.low - share * self.value, self.high + share * self.value)

    def blurred(self, half_width: float) -> Interval:
        """Return the interval with a further, independent uncertainty; half-widths add in quadrature."""
        below, above = math.hypot(self.value - self.low, half_width), math.hypot(self.high - self.value, half_width)
        return Interval(self.value, self.value - below, self.value + above)

    def times(self, factor: float) -> Interval:
        """Return the interval multiplied by ``factor``, which is positive."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def minus(self, other: Interval) -> Interval:
        """Return the difference from an independent quantity; half-widths add in quadrature."""
        value = self.value - other.value
        below = math.hypot(self.value - self.low, other.high - other.value)
        above = math.hypot(self.high - self.value, other.value - other.low)
        return Interval(value, value - below, value + above)

    def scaled(self, by: Interval) -> Interval:
        """Return the product with another quantity; neither value is negative."""
        ends = [a * b for a in (self.low, self.high) for b in (by.low, by.high)]
        return Interval(self.value * by.value, min(ends), max(ends))

    def beside(self, rest: float) -> Interval:
        """Return the share of this cost, which is not negative, in its sum with the positive ``rest``."""
        return Interval(*(1.0 if math.isinf(x) else x / (x + rest) for x in (self.value, self.low, self.high)))

    def not_negative(self) -> Interval:
        """Return the interval of a cost, which cannot be negative: below zero there is only noise."""
        return largest(self, exactly(0.0))

    def inverse(self, numerator: float = 1.0) -> Interval:
        """Return ``numerator / self``, with the ends exchanged: milliseconds to steps per second, for example."""
        return Interval(
            numerator / self.value,
            0.0 if math.isinf(self.high) else numerator / self.high,
            numerator / self.low if self.low > 0 else math.inf,
        )

    def to_dict(self) -> dict[str, float | None]:
        """Return the JSON form. JSON has no infinity: an infinite end is null."""
        return {
            "value": round(self.value, 6),
            "low": None if math.isinf(self.low) else round(self.low, 6),
            "high": None if math.isinf(self.high) else round(self.high, 6),
        }


def plain(interval: Interval | None) -> dict[str, float | None] | None:
    """Return the JSON form, or None if there is no interval."""
    return interval.to_dict() if interval is not None else None


def total(parts: Sequence[Interval]) -> Interval:
    """Return the sum of independent quantities; half-widths add in quadrature."""
    value = sum(part.value for part in parts)
    below = math.hypot(*(part.value - part.low for part in parts))
    above = math.hypot(*(part.high - part.value for part in parts))
    return Interval(value, value - below, value + above)


def exactly(value: float) -> Interval:
    return Interval(value, value, value)


def largest(one: Interval, other: Interval) -> Interval:
    return Interval(max(one.value, other.value), max(one.low, other.low), max(one.high, other.high))


def least(one: Interval, other: Interval) -> Interval:
    return Interval(min(one.value, other.value), min(one.low, other.low), min(one.high, other.high))


def exceeds(interval: Interval, bound: float) -> bool | None:
    """Return whether a quantity exceeds a bound, or None if its interval contains the bound."""
    return None if interval.low <= bound < interval.high else interval.low > bound


def by_logarithms(value: float, below: float, above: float) -> Interval:
    """Return a positive value with ends whose logarithms lie this far below and above its own."""
    return Interval(value, value * math.exp(-below), math.inf if above > 700 else value * math.exp(above))


def apart(before: Interval, after: Interval) -> Interval:
    """Return the ratio ``after / before`` of two independent rates; half-widths of the logarithms add in quadrature."""
    below = math.hypot(log_ratio(after.value, after.low), log_ratio(before.high, before.value))
    above = math.hypot(log_ratio(after.high, after.value), log_ratio(before.value, before.low))
    return by_logarithms(after.value / before.value, below, above)


def log_ratio(large: float, small: float) -> float:
    """Return the logarithm of a ratio; infinite if either end is open."""
    return math.log(large / small) if small > 0 and not math.isinf(large) else math.inf
