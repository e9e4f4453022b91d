"""A script analysed under one setting after another: a row for each, with what it reaches and what holds it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..session import REMEDIED, SCHEMA_VERSION
from .diagnosis import Diagnosis
from .intervals import Interval
from .remedy import outcome


@dataclass(frozen=True)
class Run:
    """One point of a sweep.

    Attributes:
        setting: names and values of the arguments that were varied.
        argv: the whole command line of the script.
        diagnosis: None where nothing was measured.
        exit_code: the script's own, where it failed.
        why_not: why it failed; empty where it did not.
    """

    setting: tuple[tuple[str, str], ...]
    argv: list[str]
    diagnosis: Diagnosis | None
    exit_code: int = 0
    why_not: str = ""

    @property
    def ceiling(self) -> Interval | None:
        """Steps a second with batches cached on the device; None where that was not measured."""
        return self._rate("device")

    @property
    def baseline(self) -> Interval | None:
        """Steps a second with the loader as it is."""
        return self._rate("baseline")

    @property
    def speedup(self) -> Interval | None:
        """How many times as many steps a second the remedy makes; None where none was measured."""
        came = outcome(self.diagnosis.session) if self.diagnosis is not None else None
        return came.speedup if came is not None else None

    @property
    def remedied(self) -> Interval | None:
        """Steps a second under the remedy."""
        return self._rate(REMEDIED)

    @property
    def no_remedy(self) -> str:
        """Why there is no remedy, or none that pays, where one was asked for."""
        came = outcome(self.diagnosis.session) if self.diagnosis is not None else None
        return (came.why_not or came.reverted) if came is not None else ""

    @property
    def starved(self) -> Interval | None:
        """Share of a step that the input pipeline costs."""
        return self.diagnosis.verdict.starved if self.diagnosis is not None else None

    @property
    def bottleneck(self) -> str:
        return self.diagnosis.verdict.bottleneck if self.diagnosis is not None else ""

    def samples(self, rate: Interval | None) -> Interval | None:
        """Samples a second at so many steps a second; None where the loader's batch size is not known."""
        loader = self.diagnosis.session.loader if self.diagnosis is not None else None
        if rate is None or loader is None or not loader.batch_size:
            return None
        size = loader.batch_size
        return Interval(size * rate.value, size * rate.low, size * rate.high)

    def _rate(self, rung: str) -> Interval | None:
        if self.diagnosis is None or not self.diagnosis.ladder.has(rung):
            return None
        return self.diagnosis.ladder.ms(rung).inverse(1000.0)

    def to_dict(self) -> dict[str, Any]:
        rates = {"ceiling": self.ceiling, "baseline": self.baseline, "remedied": self.remedied}
        return {
            "setting": dict(self.setting),
            "argv": self.argv,
            "exit_code": self.exit_code,
            "why_not": self.why_not or None,
            **{
                name: {"steps_per_s": _plain(rate), "samples_per_s": _plain(self.samples(rate))}
                for name, rate in rates.items()
            },
            "speedup": _plain(self.speedup),
            "starved": _plain(self.starved),
            "bottleneck": self.bottleneck or None,
            "report": self.diagnosis.to_dict() if self.diagnosis is not None else None,
        }


@dataclass(frozen=True)
class Sweep:
    """The runs made so far, of ``planned``."""

    script: str
    planned: int
    runs: list[Run]

    @property
    def measured(self) -> list[Run]:
        """Those of which something is known."""
        return [run for run in self.runs if run.diagnosis is not None]

    @property
    def best(self) -> Run | None:
        """The one that trains on the most samples a second as it is, where that is known of two at least."""
        known = [(rate.value, run) for run in self.runs if (rate := run.samples(run.baseline)) is not None]
        return max(known, key=lambda pair: pair[0])[1] if len(known) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """The published form. Each run's ``report`` is what ``pipediag analyze -o x.json`` writes."""
        return {
            "schema_version": SCHEMA_VERSION,
            "script": self.script,
            "planned": self.planned,
            "runs": [run.to_dict() for run in self.runs],
        }


def _plain(interval: Interval | None) -> dict[str, float | None] | None:
    return interval.to_dict() if interval is not None else None
