"""Hold the results of an analysis as plain dataclasses, and produce the published JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..session import REMEDIES, RUNG_MEANING, SCHEMA_VERSION, Place, Session, Warning_, ordered, settings_of
from .numbers.intervals import Interval, plain
from .numbers.ladder import LadderView
from .thresholds import GATE, SEVERE
from .trials.halving import to_dict as settings_dict
from .trials.remedy import savings_of
from .trials.remedy import to_dict as remedy_dict
from .whatif import Savings

if TYPE_CHECKING:
    from .ranks.stragglers import Straggler


@dataclass(frozen=True)
class Without:
    """Steps per second that the loop would make without a stage: ``measured`` under a rung, or predicted."""

    steps_per_s: float
    measured: bool


@dataclass
class Stage:
    """One piece of the baseline step, never negative; see :mod:`.waterfall`."""

    stage: str
    ms: Interval
    share: float  # of the baseline step
    culprit: Place | None = None
    covers: list[str] = field(default_factory=list)  # every stage in the piece if they cannot be separated
    rung: str = ""  # the rung that adds it
    links: list[str] = field(default_factory=list)  # the transforms in it
    without: Without | None = None

    @property
    def others(self) -> list[str]:
        return [stage for stage in self.covers if stage != self.stage]

    def to_dict(self) -> dict[str, Any]:
        without = self.without
        return {
            "stage": self.stage,
            "rung": self.rung,
            "covers": self.covers,
            "links": self.links,
            "culprit": self.culprit and asdict(self.culprit),
            "ms": self.ms.to_dict(),
            "share": round(self.share, 4),
            "without": without and {"steps_per_s": round(without.steps_per_s, 4), "measured": without.measured},
        }


@dataclass
class Verdict:
    """The origin of starvation."""

    bottleneck: str
    sentence: str
    #: The strength of the evidence: ``observed`` from the loop's own waiting, ``intervened`` from feeding the loop from
    #: a cache, ``proven`` from rungs that agree on the stage, each measured at least twice; empty if nothing was seen.
    level: str = ""
    culprit: Place | None = None
    starved: Interval | None = None  # the share of the baseline step that the input pipeline costs
    co_bottlenecks: list[str] = field(default_factory=list)
    next_ceiling: tuple[str, float] | None = None  # the stage that limits next, and steps/s then
    uncertain: str = ""  # why the answer is not certain; empty if it is

    @property
    def finds_cost(self) -> bool:
        """Whether it says that data costs time: not that it costs none, nor that it is open."""
        return self.bottleneck not in ("none", "inconclusive")

    @property
    def certain(self) -> bool:
        """True if a repeated analysis would come to the same answer."""
        return self.starved is not None and self.bottleneck != "inconclusive" and not self.uncertain

    @property
    def band(self) -> str:
        """Severity of starvation: ``none``, ``mild``, ``severe`` or ``unknown``."""
        if self.starved is None:
            return "unknown"
        if self.starved.value < GATE:
            return "none"
        return "mild" if self.starved.value < SEVERE else "severe"


@dataclass
class Recommendation:
    """A change that would make the loop faster."""

    id: str  # never changes
    title: str  # the change in one line
    stage: str  # the pipeline stage that the change improves
    predicted: Interval | None  # speedup predicted from this run's numbers; None if it cannot be predicted
    measured: Interval | None  # speedup measured under the change; None if it was not tried
    evidence: list[str]  # sentences with the measurements behind it
    how: str  # the code or option to change, with its place if known
    risk: str  # possible drawbacks
    savings: Savings | None = None  # the speedup as time and workers; None if no speedup is known
    #: True if ``predicted`` is that of a loop without the work that the change makes cheaper: how much of it a change
    #: saves is not known.
    at_most: bool = False

    @property
    def gain(self) -> Interval | None:
        """The measured speedup, or the predicted one if it was not measured."""
        return self.measured or self.predicted

    def to_dict(self, price: float | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "stage": self.stage,
            "predicted_speedup": plain(self.predicted),
            "at_most": self.at_most,
            "measured_speedup": plain(self.measured),
            "savings": self.savings.to_dict(price) if self.savings else None,
            "evidence": self.evidence,
            "how": self.how,
            "risk": self.risk,
        }


@dataclass
class Diagnosis:
    """A session with its waterfall, verdict, warnings and recommendations; ``diagnose_session`` makes it."""

    ladder: LadderView
    waterfall: list[Stage]
    verdict: Verdict
    warnings: list[Warning_]
    partial: bool
    recommendations: list[Recommendation] = field(default_factory=list)
    nothing_to_gain: str = ""  # why no recommendation concerns the input pipeline, if none does
    price: float | None = None  # what an hour of training costs, in any currency; None if unknown
    straggler: Straggler | None = None  # the rank that holds up a distributed job
    no_straggler: str = ""  # why none is named
    amortised: list[Stage] = field(default_factory=list)  # costs between the steps, spread over them

    @property
    def session(self) -> Session:
        return self.ladder.session

    @property
    def between_steps(self) -> list[Stage]:
        """The amortised costs, which count unless the answer is that or whether there is no cost."""
        return self.amortised if self.verdict.finds_cost else []

    def to_dict(self) -> dict[str, Any]:
        """Return the published JSON: times in milliseconds, rates in steps per second, intervals as value, low, high.

        ``session`` holds the raw windows, from which everything else follows.
        """
        session, verdict, raw = self.session, self.verdict, self.session.to_dict()
        holding = self.straggler.ranks if self.straggler else ()
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "pipediag", "version": session.tool_version},
            "script": raw["script"],
            "environment": session.environment,
            "device": session.device,
            "loader": raw["loader"],
            "rungs": [
                self._rung(name) for name in ordered({*RUNG_MEANING, *session.rungs}) if settings_of(name) is None
            ],
            "waterfall": [stage.to_dict() for stage in self.waterfall],
            "amortised": [
                {name: value for name, value in stage.to_dict().items() if name in ("stage", "culprit", "ms", "share")}
                for stage in self.amortised
            ],
            "startup": [round(s.seconds, 4) for s in session.startups],
            "evidence": {
                "worker": raw["inside"],
                **{name: raw[name] for name in ("tail", "batch_steps", "batch", "prefix", "profile")},
            },
            "verdict": {
                "bottleneck": verdict.bottleneck,
                "culprit": verdict.culprit and asdict(verdict.culprit),
                "level": verdict.level or None,
                "certain": verdict.certain,
                "why_uncertain": verdict.uncertain or None,
                "starved": plain(verdict.starved),
                "waits": plain(self.ladder.waited("baseline")) if self.ladder.has("baseline") else None,
                "band": verdict.band,
                "co_bottlenecks": verdict.co_bottlenecks,
                "next_ceiling": (
                    {"stage": verdict.next_ceiling[0], "steps_per_s": round(verdict.next_ceiling[1], 4)}
                    if verdict.next_ceiling
                    else None
                ),
                "sentence": verdict.sentence,
            },
            "recommendations": [one.to_dict(self.price) for one in self.recommendations],
            "nothing_to_gain": self.nothing_to_gain or None,
            "loader_settings": settings_dict(session),
            "price": self.price,
            "ranks": [{**rank, "straggler": rank["rank"] in holding} for rank in raw["ranks"]],
            "straggler": self.straggler.to_dict() if self.straggler else None,
            "no_straggler": self.no_straggler or None,
            **{key: self._remedy(rung) for rung, key in REMEDIES.items()},
            "warnings": [asdict(warning) for warning in self.warnings],
            "partial": self.partial,
            "session": raw,
        }

    def _remedy(self, rung: str) -> dict[str, Any] | None:
        told, saved = remedy_dict(self.session, rung), savings_of(self.ladder, rung)
        return told and {**told, "savings": saved.to_dict(self.price) if saved else None}

    def _rung(self, name: str) -> dict[str, Any]:
        measured = self.ladder.has(name)
        rung = self.session.rungs.get(name)
        ms = self.ladder.ms(name) if measured else None
        return {
            "name": name,
            "available": rung.available if rung else measured,
            "why_not": rung.why_not if rung else ("" if measured else "not reached"),
            "ms_per_step": plain(ms),
            "steps_per_s": plain(ms and ms.inverse(1000.0)),
            "windows": self.ladder.windows(name),
            "evidence": self.ladder.evidence(name) if measured else {},
        }
