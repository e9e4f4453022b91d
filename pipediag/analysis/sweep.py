"""Define the result of a sweep: one script analysed under several settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..session import SCHEMA_VERSION, Session
from .diagnosis import Diagnosis
from .numbers.intervals import Interval, apart, plain
from .numbers.own_times import pace
from .trials.remedy import Outcome, best, why_none


@dataclass(frozen=True)
class Run:
    """One point of a sweep."""

    setting: tuple[tuple[str, str], ...]  # names and values of the varied arguments
    argv: list[str]  # the whole command line of the script
    diagnosis: Diagnosis | None  # None if nothing was measured
    exit_code: int = 0  # the script's own exit code if it failed
    why_not: str = ""  # why it failed; empty if it did not

    @property
    def session(self) -> Session:
        """What was measured; empty if nothing was."""
        return self.diagnosis.session if self.diagnosis is not None else Session()

    @property
    def written(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.setting)

    @property
    def ceiling(self) -> Interval | None:
        """Steps per second with batches cached on the device; None if not measured."""
        return self._rate("device")

    @property
    def baseline(self) -> Interval | None:
        """Steps per second with the unmodified loader; None if not measured."""
        return self._rate("baseline")

    @property
    def speedup(self) -> Interval | None:
        """Measured speedup of the remedy; None if not measured."""
        return self._outcome.speedup if self._outcome is not None else None

    @property
    def remedied(self) -> Interval | None:
        """Steps per second under the remedy; None if not measured."""
        return self._rate(self._outcome.rung) if self._outcome is not None else None

    @property
    def no_remedy(self) -> str:
        """Why no remedy pays; empty if one does, or if none was requested."""
        return why_none(self.session)

    @property
    def starved(self) -> Interval | None:
        """Share of a step that the input pipeline costs."""
        return self.diagnosis.verdict.starved if self.diagnosis is not None else None

    @property
    def bottleneck(self) -> str:
        return self.diagnosis.verdict.bottleneck if self.diagnosis is not None else ""

    def samples(self, rate: Interval | None) -> Interval | None:
        """Return samples per second at ``rate`` steps per second, or None if the rate or the batch size is unknown."""
        loader = self.session.loader
        return rate.times(loader.batch_size) if rate is not None and loader is not None and loader.batch_size else None

    @property
    def again(self) -> Interval | None:
        """Samples per second at baseline, as uncertain as from one analysis to the next."""
        if self.baseline is None or self.diagnosis is None:
            return None
        return self.samples(pace(self.diagnosis.ladder, "baseline").inverse(1000.0))

    @property
    def _outcome(self) -> Outcome | None:
        return best(self.session)

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
                name: {"steps_per_s": plain(rate), "samples_per_s": plain(self.samples(rate))}
                for name, rate in rates.items()
            },
            "speedup": plain(self.speedup),
            "starved": plain(self.starved),
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
        """The runs with a diagnosis."""
        return [run for run in self.runs if run.diagnosis is not None]

    @property
    def best(self) -> Run | None:
        """The run with the most samples per second at baseline, or None unless at least two runs have that figure."""
        known = [(rate.value, run) for run in self.runs if (rate := run.samples(run.baseline)) is not None]
        return max(known, key=lambda pair: pair[0])[1] if len(known) > 1 else None

    @property
    def rivals(self) -> list[Run]:
        """The runs that may make as many samples a second as the best if both were analysed again."""
        if (best := self.best) is None or (most := best.again) is None:
            return []
        others = [(run, run.again) for run in self.runs if run is not best]
        return [run for run, again in others if again is not None and apart(again, most).low <= 1]

    def to_dict(self) -> dict[str, Any]:
        """Return the published form. A run's ``report`` is what ``pipediag analyze -o x.json`` writes."""
        return {
            "schema_version": SCHEMA_VERSION,
            "script": self.script,
            "planned": self.planned,
            "runs": [run.to_dict() for run in self.runs],
        }
