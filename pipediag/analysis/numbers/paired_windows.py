"""Estimate the speedup between two conditions of one loop on a drifting host, and decide when it is certain.

The windows of the two conditions alternate. Neighbours in time make a pair, and their order is reversed from pair to
pair, so that linear drift affects both alike. The estimate uses the logarithms of the pairs' ratios. Few pairs say
little about their spread, but recorded runs show how much neighbouring windows differ: the variance is shrunk towards
that, as in the moderated t of Smyth (Statistical Applications in Genetics and Molecular Biology 3(1), 2004).
benchmarks/noise.py tests the coverage. Like :mod:`.intervals`, this module uses only the standard library: it runs
between two windows inside the user's own process.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..thresholds import RESOLUTION, WORTH
from .intervals import CONFIDENCE, Interval, by_logarithms

#: Numbers of pairs at the first two looks at a trial; the later looks double them in turn.
FIRST_LOOKS = (2, 3)
#: Two-sided error probability per look, for 5 % in all: Pocock, "Group sequential methods in the design and analysis of
#: clinical trials" (Biometrika 64(2), 1977), for ten looks: 2 to 48 pairs.
PER_LOOK = 0.0106
#: Number of groups into which neighbouring blocks of a share are merged.
GROUPS = 4
#: Share of the error probability for the plain t: enough for a quiet host to decide soon by its own spread.
SPLIT = 0.1
#: Number of standard deviations from the median beyond which a pair is an outlier.
WILD = 3.5
#: Least speedup: a step must become shorter by more than the instrument's resolution.
LEAST = 1.0 / (1.0 - RESOLUTION)


@dataclass(frozen=True)
class Noise:
    """Prior knowledge of the noise."""

    sd: float  # standard deviation of the logarithm of the ratio of two equal, neighbouring windows
    degrees: int  # its weight in degrees of freedom, 0 if nothing is known


#: No prior knowledge: gives the plain t.
UNKNOWN = Noise(0.0, 0)
#: Noise of the loop's pace over three rounds of its workers.
PACE = Noise(0.10, 4)
#: The same, corrected for queued batches: time per batch made, not per batch taken.
PRODUCTION = Noise(0.08, 4)
#: Noise of the workers' mean time per batch over one round or more.
WORKERS = Noise(0.06, 4)


def paired_ratio(slow: Sequence[float], fast: Sequence[float], noise: Noise = PACE) -> Interval:
    """Return the geometric mean of the neighbours' ratios ``slow[i] / fast[i]`` with its 95 % interval.

    Needs at least one pair.
    """
    return _interval(_tamed(_logs(slow, fast), noise), noise, 1 - CONFIDENCE)


def ratio_of_pairs(pairs: Sequence[tuple[float, float]], noise: Noise) -> Interval:
    """Return :func:`paired_ratio`, but the 95 % interval of a single pair from the prior noise alone."""
    slow, fast = zip(*pairs, strict=True)
    return paired_ratio(slow, fast, noise) if len(pairs) > 1 else around(slow[0] / fast[0], noise)


def around(value: float, noise: Noise) -> Interval:
    """Return the 95 % interval around one value, from the prior noise alone."""
    arm = student_t(noise.degrees) * noise.sd
    return by_logarithms(value, arm, arm)


def mean_rate(values: Sequence[float], noise: Noise = PACE) -> Interval:
    """Return the geometric mean of one condition's windows with its 95 % interval. Needs at least one value.

    It takes milliseconds per step or steps per second; two levels have the same ratio as plain pairs.
    """
    if len(values) == 1:
        return Interval(values[0], -math.inf, math.inf)
    single = Noise(noise.sd / math.sqrt(2), noise.degrees)  # either window of a pair has half the variance
    return _interval([math.log(value) for value in values], single, 1 - CONFIDENCE)


def share(parts: Sequence[float], wholes: Sequence[float], noise: Noise = UNKNOWN) -> Interval:
    """Return ``sum(parts) / sum(wholes)`` over blocks in time order, with its 95 % interval, within 0 and 1.

    This is the ratio estimator with its linearised variance: Cochran, "Sampling Techniques" (3rd edition, 1977, section
    6.4). Neighbouring blocks are correlated, so they are merged into :data:`GROUPS`. ``noise`` is prior knowledge of a
    block's share; the variance is shrunk towards it. The sum of ``wholes`` must be positive.
    """
    pairs, whole = [*zip(parts, wholes, strict=True)], sum(wholes)
    n, value = min(GROUPS, len(pairs)), sum(parts) / whole
    degrees = noise.degrees + n - 1
    if not degrees:
        return Interval(value, 0.0, 1.0)
    residuals = [0.0] * n
    for i, (part, of) in enumerate(pairs):
        residuals[i * n // len(pairs)] += part - value * of
    known = noise.degrees * noise.sd**2 * n / len(pairs)
    seen = sum((n * x / whole) ** 2 for x in residuals)
    arm = student_t(degrees) * math.sqrt((known + seen) / degrees / n)
    return Interval(value, max(0.0, value - arm), min(1.0, value + arm))


def sure_gain(slow: Sequence[float], fast: Sequence[float], noise: Noise = PACE, *, last: bool = False) -> bool | None:
    """Return whether ``fast`` is faster than ``slow`` by more than :data:`LEAST`, from the first look that can tell.

    False means certainly slower or not worth a change, None means open. ``last`` adds a look at all pairs, for use when
    no more will come.
    """
    logs = _logs(slow, fast)
    for n in [*looks(len(logs)), *([len(logs)] if last and logs else [])]:
        gain = _interval(_tamed(logs[:n], noise), noise, PER_LOOK)
        if gain.low > LEAST or gain.high < WORTH:
            return gain.low > LEAST
    return None


def looks(pairs: int) -> Iterator[int]:
    """Yield the numbers of pairs, up to ``pairs``, at which a trial is looked at: 2, 3, 4, 6, 8, 12, 16, ..."""
    now, later = FIRST_LOOKS
    while now <= pairs:
        yield now
        now, later = later, 2 * now


def _logs(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    return [math.log(s / f) for s, f in zip(slow, fast, strict=True)]


def _tamed(logs: list[float], noise: Noise) -> list[float]:
    """Return the logarithms with outliers winsorized, by the prior noise or the median deviation."""
    middle = statistics.median(logs)
    far = WILD * max(noise.sd, 1.4826 * statistics.median(abs(x - middle) for x in logs))
    return [min(max(x, middle - far), middle + far) for x in logs] if noise.degrees else logs


def _interval(logs: Sequence[float], noise: Noise, error: float) -> Interval:
    """Return the interval of the moderated t, or of the plain t if the host is so quiet that this is narrower.

    The error probability is divided between the two, as in Bonferroni's correction.
    """
    n, centre, arm = len(logs), statistics.fmean(logs), math.inf
    squares = sum((x - centre) ** 2 for x in logs)
    for known, part in ((noise, 1 - SPLIT), (UNKNOWN, SPLIT)) if noise.degrees else ((UNKNOWN, 1.0),):
        degrees = known.degrees + n - 1
        if n > 1:
            variance = (known.degrees * known.sd**2 + squares) / degrees
            arm = min(arm, student_t(degrees, part * error) * math.sqrt(variance / n))
    return by_logarithms(math.exp(centre), arm, arm)


@lru_cache(maxsize=256)
def student_t(degrees: int, error: float = 1 - CONFIDENCE) -> float:
    """Return the value that Student's t exceeds, to either side, with probability ``error``.

    Bisection of the distribution in Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.7.3 and
    26.7.4.
    """
    low, high, odd = 0.0, math.pi / 2, degrees % 2
    for _ in range(60):
        angle = (low + high) / 2
        term, total = (math.cos(angle) if odd else 1.0), 0.0
        for k in range(odd, degrees - 1, 2):
            total += term
            term *= math.cos(angle) ** 2 * (k + 1) / (k + 2)
        within = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
        low, high = (angle, high) if within < 1 - error else (low, angle)
    return math.sqrt(degrees) * math.tan(high)
