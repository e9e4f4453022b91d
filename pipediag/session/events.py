"""Define the events of a measurement in one table: the class of their data, and where in the session it goes.

An event travels as its kind and plain data, see :mod:`pipediag.host.channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from . import facts
from .codec import build
from .rungs import REMEDIED, REMEDIES

if TYPE_CHECKING:
    from . import Session


@dataclass
class Wrote:
    """The script wrote a file; ``overwrote`` is true if it was there before the analysis, and was not appended to."""

    path: str
    overwrote: bool = False


@dataclass
class Pass:
    """A pass over the script begins; the parent itself says so, and ``why`` the script runs again."""

    number: int
    why: str = ""


@dataclass
class Tick:
    """Time passes; the parent itself says so."""


@dataclass
class FirstBatch:
    """The script has drawn its first batch: the budget begins."""


@dataclass
class Trainer:
    """The script started a process that trains and cannot be measured, by the command ``at``."""

    at: str


@dataclass
class Member:
    """A process beside the child introduces itself; ``rank`` is its rank in a distributed job as far as it knows."""

    pid: int
    rank: int | None = None


@dataclass
class Progress:
    """A window of ``rung`` begins; round 0 observes the loop as it is."""

    rung: str
    round: int


@dataclass
class Trying:
    """The ladder is known, and other settings of the loader are tried for ``budget`` seconds."""

    budget: float


@dataclass
class Applying:
    """The remedy of ``rung`` is prepared after the ladder ``ended``, or it is measured for ``budget`` seconds."""

    ended: str = ""
    rung: str = REMEDIED
    budget: float = 0.0


@dataclass
class Looking:
    """The model is looked at for at most ``seconds``; ``at`` says what is recorded, empty if it is not worth saying."""

    at: str
    seconds: float


@dataclass
class LoaderUse:
    """How often a loader of the script was drawn from, and how many optimizer steps are credited to it."""

    ordinal: int
    where: str
    draws: int
    credits: int


@dataclass
class Story:
    """What the script did: the facts from which the parent decides on another pass.

    ``target`` is the ordinal of the training loader, ``rung`` the one under way at the end. ``error`` is the last line
    of the exception that ended the script, ``said`` that of its message on leaving, ``exit_code`` what it left with;
    ``refused`` is true if the error shows that the script cannot run twice, ``making`` if it came out of a loader, and
    so from making a batch.
    """

    loaders: list[LoaderUse] = field(default_factory=list)
    optimizer_steps: int = 0
    target: int | None = None
    horizon: int | None = None
    rung: str | None = None
    error: str = ""
    said: str = ""
    exit_code: int = 0
    refused: bool = False
    making: bool = False


@dataclass
class Finished(Story):
    """The child stops the script, for ``reason``."""

    reason: str = ""


def _append(name: str) -> Callable[[Session, Any], None]:
    return lambda session, data: getattr(session, name).append(data)


def _set(name: str) -> Callable[[Session, Any], None]:
    return lambda session, data: setattr(session, name, data)


def _update(name: str) -> Callable[[Session, Any], None]:
    return lambda session, data: getattr(session, name).update(data)


def _add_file(session: Session, wrote: Wrote) -> None:
    script = session.script
    for files in (script.wrote, script.overwrote) if wrote.overwrote else (script.wrote,):
        if wrote.path not in files:
            files.append(wrote.path)


class Kind(NamedTuple):
    """A kind of event: the class of its data, and the function that enters the data in a session, if any does."""

    data: type
    enter: Callable[[Session, Any], None] | None = None


KINDS = {
    "window": Kind(facts.Window, _append("windows")),
    "observed": Kind(facts.Observed, _append("observed")),
    "startup": Kind(facts.Startup, _append("startups")),
    "stretch": Kind(facts.Stretch, _append("stretches")),
    "batch-step": Kind(facts.BatchStep, _append("batch_steps")),
    "loader": Kind(facts.Loader, _set("loader")),
    "inside": Kind(facts.Inside, _set("inside")),
    "tail": Kind(facts.Tail, _set("tail")),
    "knobs": Kind(facts.Knobs, _set("knobs")),
    **{name: Kind(facts.Remedy, _set(name)) for name in REMEDIES.values()},
    "rank": Kind(facts.Rank, lambda session, rank: setattr(session, "ranks", [rank])),
    "rank-trial": Kind(facts.RankTrial, _append("rank_trials")),
    "batch": Kind(facts.BatchFacts, _set("batch")),
    "syncs": Kind(facts.Syncs, _set("syncs")),
    "prefix": Kind(facts.Prefix, _set("prefix")),
    "profile": Kind(facts.Profile, _set("profile")),
    "environment": Kind(dict, _update("environment")),
    "device": Kind(dict, _update("device")),
    "caches": Kind(dict, _update("caches")),
    "rung": Kind(facts.Rung, lambda session, rung: session.rungs.update({rung.name: rung})),
    "warning": Kind(facts.Warning_, lambda session, warning: session.warn(warning.code, warning.message, warning.help)),
    "wrote": Kind(Wrote, _add_file),
    "first-batch": Kind(FirstBatch),
    "trainer": Kind(Trainer),
    "member": Kind(Member),
    "progress": Kind(Progress),
    "trying": Kind(Trying),
    "applying": Kind(Applying),
    "looking": Kind(Looking),
    "finished": Kind(Finished),
    "ended": Kind(Story),
}


def read(kind: str, data: Mapping[str, Any]) -> Any:
    """Return an event's data as an object of its class; None for a kind that another version sent.

    Raises:
        TypeError, ValueError: the data does not fit the class.
    """
    if kind not in KINDS:
        return None
    cls = KINDS[kind].data
    return data if cls is dict else build(cls, data)
