"""Two conditions of one loop on a host whose speed drifts: how many times as fast, and since when that is certain.

The windows of the two alternate, neighbours in time make a pair, and their order is reversed from pair to pair: linear
drift falls on both alike. Compared are the logarithms of the pairs' ratios. Few pairs say little of their spread, but
how much neighbouring windows differ is known from recorded runs: the variance is shrunk towards that, the moderated t
of Smyth (Statistical Applications in Genetics and Molecular Biology 3(1), 2004). benchmarks/noise.py tests coverage.
Standard library only, as :mod:`.intervals`: it runs between two windows inside the user's own process.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .intervals import CONFIDENCE, Interval, student_t
from .thresholds import RESOLUTION, WORTH

#: Pairs after which a trial is looked at; from there on the two are doubled in turn.
FIRST_LOOKS = (3, 4)
#: Two-sided chance of an error at each look, for 5 % in all: Pocock, "Group sequential methods in the design and
#: analysis of clinical trials" (Biometrika 64(2), 1977), for nine looks: 3 to 48 pairs.
PER_LOOK = 0.0112
#: Part of the chance of an error that is given to the plain t: enough that a quiet host soon decides by itself.
SPLIT = 0.1
#: Standard deviations from the median beyond which a pair is no noise but a hiccup.
WILD = 3.5
#: A step has to become shorter by more than the instrument can tell.
LEAST = 1.0 / (1.0 - RESOLUTION)


@dataclass(frozen=True)
class Noise:
    """What is known beforehand: ``sd``, the standard deviation of the logarithm of the ratio of two neighbouring, equal
    windows, and how many ``degrees`` of freedom that is worth; 0 for nothing known."""

    sd: float
    degrees: int


#: Nothing is known: the plain t.
UNKNOWN = Noise(0.0, 0)
#: The pace of a loop over three rounds of its workers.
PACE = Noise(0.10, 4)
#: The same, corrected for what lay ready: time over the batches made, not over those taken.
PRODUCTION = Noise(0.08, 4)
#: The workers' mean time per batch over one round or more.
WORKERS = Noise(0.06, 4)


def paired_ratio(slow: Sequence[float], fast: Sequence[float], noise: Noise = PACE) -> Interval:
    """Geometric mean of the ratios ``slow[i] / fast[i]`` of neighbours, with its 95 % interval. Not without pairs."""
    return _interval(_tamed(_logs(slow, fast), noise), noise, 1 - CONFIDENCE)


def mean_rate(values: Sequence[float], noise: Noise = PACE) -> Interval:
    """Level of one condition from its windows: the geometric mean, with its 95 % interval. Not without values.

    Of milliseconds a step or of steps a second alike; two levels have the ratio that plain pairs have.
    """
    if len(values) == 1:
        return Interval(values[0], -math.inf, math.inf)
    single = Noise(noise.sd / math.sqrt(2), noise.degrees)  # either window of a pair has half the variance
    return _interval([math.log(value) for value in values], single, 1 - CONFIDENCE)


def share(parts: Sequence[float], wholes: Sequence[float], groups: int = 4, noise: Noise = UNKNOWN) -> Interval:
    """``sum(parts) / sum(wholes)`` over blocks in the order of time, with its 95 % interval, within 0 and 1.

    The ratio estimator and its linearised variance: Cochran, "Sampling Techniques" (3rd edition, 1977, section 6.4).
    Neighbours resemble each other: they are merged into groups. ``noise`` is what is known of a block's share
    beforehand; the variance is shrunk towards it. Not without blocks.
    """
    pairs, whole = [*zip(parts, wholes, strict=True)], sum(wholes)
    if whole <= 0:
        raise ValueError("a share of nothing")
    n, value = min(groups, len(pairs)), sum(parts) / whole
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


def sure_gain(
    slow: Sequence[float], fast: Sequence[float], noise: Noise = PACE, *, least: float = LEAST, last: bool = False
) -> bool | None:
    """Whether ``fast`` is faster than ``slow`` by more than ``least``: what the first look says that can tell.
    False: certainly not worth a change, or slower. None: open. ``last``: no more pairs will come, look at all of them.
    """
    logs = _logs(slow, fast)
    for n in [*looks(len(logs)), *([len(logs)] if last and logs else [])]:
        gain = _interval(_tamed(logs[:n], noise), noise, PER_LOOK)
        if gain.low > least or gain.high < WORTH:
            return gain.low > least
    return None


def looks(pairs: int) -> Iterator[int]:
    """The numbers of pairs, up to this one, at which a trial is looked at: 3, 4, 6, 8, 12, 16, 24, ..."""
    now, later = FIRST_LOOKS
    while now <= pairs:
        yield now
        now, later = later, 2 * now


def _logs(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    return [math.log(s / f) for s, f in zip(slow, fast, strict=True)]


def _tamed(logs: list[float], noise: Noise) -> list[float]:
    """A hiccup of the host moved to where noise ends: Winsorized, by the noise known or the median deviation."""
    middle = statistics.median(logs)
    far = WILD * max(noise.sd, 1.4826 * statistics.median(abs(x - middle) for x in logs))
    return [min(max(x, middle - far), middle + far) for x in logs] if noise.degrees else logs


def _interval(logs: Sequence[float], noise: Noise, error: float) -> Interval:
    """By the moderated t, or by the plain t where the host is so quiet that this is narrower; the chance of an error is
    divided between the two, as Bonferroni does."""
    n, centre, arm = len(logs), statistics.fmean(logs), math.inf
    squares = sum((x - centre) ** 2 for x in logs)
    for known, part in ((noise, 1 - SPLIT), (UNKNOWN, SPLIT)) if noise.degrees else ((UNKNOWN, 1.0),):
        degrees = known.degrees + n - 1
        if n > 1:
            variance = (known.degrees * known.sd**2 + squares) / degrees
            arm = min(arm, _quantile(part * error, degrees) * math.sqrt(variance / n))
    high = math.exp(centre + arm) if centre + arm < 700 else math.inf
    return Interval(math.exp(centre), math.exp(centre - arm), high)


@lru_cache(maxsize=256)
def _quantile(error: float, degrees: int) -> float:
    """Student's t that is exceeded, to either side, with this chance: by bisection of the distribution in Abramowitz
    and Stegun, "Handbook of Mathematical Functions" (1964), 26.7.3 and 26.7.4."""
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
