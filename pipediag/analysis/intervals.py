"""Point estimates with confidence intervals, from a handful of windows.

Windows are few (three to a few dozen) and their noise is one-sided, so the estimate is the median and the interval
a percentile bootstrap of it. A bootstrap of few values is known to be too narrow; its arms are therefore stretched
by ``t / z * sqrt(n / (n - 1))``, the correction of Hesterberg, "What Teachers Should Know About the Bootstrap" (The
American Statistician 69(4), 2015, section 3.2). It is written here, in the standard library, because it runs
between two windows inside the user's own process, where importing scipy would cost a second and hundreds of threads'
worth of memory; the tests compare it with ``scipy.stats``.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
#: With fewer values than this, two of them lying close together by chance would make one arm far too short: simulated
#: with three normal values, unequal arms cover the truth in 91 % of the cases, equal ones in 97 %.
_SYMMETRIC_BELOW = 5
RESAMPLES = 1000
_Z = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
#: Student's t at 0.975 for 1, 2, 3, ... degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % confidence interval; infinite where one window says nothing about the spread."""

    value: float
    low: float
    high: float

    def shifted(self, by: float) -> Interval:
        """The same quantity measured from another zero."""
        return Interval(self.value + by, self.low + by, self.high + by)

    def widened(self, by: float) -> Interval:
        """With an independent uncertainty of ``by`` to either side, added in quadrature."""
        return Interval(
            self.value,
            self.value - math.hypot(self.value - self.low, by),
            self.value + math.hypot(self.high - self.value, by),
        )

    def inverse(self, numerator: float = 1.0) -> Interval:
        """``numerator / self``, with the ends exchanged: milliseconds to steps per second, for example."""
        return Interval(
            numerator / self.value,
            0.0 if math.isinf(self.high) else numerator / self.high,
            numerator / self.low if self.low > 0 else math.inf,
        )

    def to_dict(self) -> dict[str, float | None]:
        """JSON has no infinity: an open end is null."""
        return {
            "value": round(self.value, 6),
            "low": None if math.isinf(self.low) else round(self.low, 6),
            "high": None if math.isinf(self.high) else round(self.high, 6),
        }


def student_t(degrees: int) -> float:
    """The 0.975 quantile of Student's t, within 0.3 % of the exact value."""
    return _T[degrees - 1] if degrees <= len(_T) else _Z * (1 + (_Z**2 + 1) / (4 * degrees))


def median_interval(values: Sequence[float]) -> Interval:
    """Median of ``values`` with its 95 % interval.

    Raises:
        ValueError: no values.
    """
    n = len(values)
    centre = statistics.median(values)
    if n == 1:
        return Interval(centre, -math.inf, math.inf)
    draw = random.Random(n)  # the same values give the same interval
    medians = sorted(statistics.median(draw.choices(values, k=n)) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    low, high = medians[int(tail * RESAMPLES)], medians[int((1 - tail) * RESAMPLES) - 1]
    stretch = student_t(n - 1) / _Z * math.sqrt(n / (n - 1))
    below, above = stretch * (centre - low), stretch * (high - centre)
    if n < _SYMMETRIC_BELOW:
        below = above = max(below, above)
    return Interval(centre, centre - below, centre + above)


def total(parts: Sequence[Interval]) -> Interval:
    """The sum of independent quantities: their arms add up in quadrature."""
    value = sum(part.value for part in parts)
    below = math.hypot(*(part.value - part.low for part in parts))
    above = math.hypot(*(part.high - part.value for part in parts))
    return Interval(value, value - below, value + above)


def difference(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """Median of the paired differences ``slow[i] - fast[i]``: what the slower rung adds, round by round."""
    return median_interval([s - f for s, f in zip(slow, fast, strict=True)])


def ratio(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """Median of the paired ratios ``slow[i] / fast[i]``, the interval taken on the logarithm, where it is symmetric."""
    logs = median_interval([math.log(s / f) for s, f in zip(slow, fast, strict=True)])
    return Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high) if logs.high < 700 else math.inf)


def unpaired_ratio(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Ratio of the medians of values measured apart, ``after / before``, the interval taken on the logarithm.

    Both sides are resampled independently; the arms are stretched as in :func:`median_interval`, by the side with fewer
    values.

    Raises:
        ValueError: a side has no values.
    """
    logs = [math.log(value) for value in before], [math.log(value) for value in after]
    centre = statistics.median(logs[1]) - statistics.median(logs[0])
    n = min(map(len, logs))
    if n == 1:
        return Interval(math.exp(centre), 0.0, math.inf)
    draw = random.Random(len(before) * 1000 + len(after))
    apart = sorted(
        statistics.median(draw.choices(logs[1], k=len(after))) - statistics.median(draw.choices(logs[0], k=len(before)))
        for _ in range(RESAMPLES)
    )
    tail = (1 - CONFIDENCE) / 2
    stretch = student_t(n - 1) / _Z * math.sqrt(n / (n - 1))
    below = stretch * (centre - apart[int(tail * RESAMPLES)])
    above = stretch * (apart[int((1 - tail) * RESAMPLES) - 1] - centre)
    if n < _SYMMETRIC_BELOW:
        below = above = max(below, above)
    return Interval(math.exp(centre), math.exp(centre - below), math.exp(centre + above) if above < 700 else math.inf)
