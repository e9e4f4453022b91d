"""Define the events of a measurement in one table: the class of their data, and where it goes in the session.

An event is sent as its kind and plain data; see :mod:`pipediag.host.channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .codec import build
from .loader import Knobs, Loader, Warning_
from .ranks import Rank, RankTrial
from .remedies import Remedy
from .rungs import REMEDIED, REMEDIES, Rung
from .step import BatchFacts, BatchStep, Prefix, Profile, Syncs
from .windows import Observed, OtherStart, Startup, Stretch, Window
from .worker import Alternative, Inside, SlowBatches, Tail

if TYPE_CHECKING:
    from . import Session


@dataclass
class Wrote:
    """The script wrote a file; ``overwrote`` is true if it was there before the analysis, and was not appended to."""

    path: str
    overwrote: bool = False


@dataclass
class Pass:
    """A pass over the script begins, from the parent itself; ``why`` says why the script runs again."""

    number: int
    why: str = ""


@dataclass
class Tick:
    """Time has passed, from the parent itself."""


@dataclass
class FirstBatch:
    """The script has drawn its first batch: the budget begins."""


@dataclass
class Trainer:
    """The script started a process that trains but cannot be measured; ``at`` is its command."""

    at: str


@dataclass
class Member:
    """A process beside the child introduces itself; ``rank`` is its rank in a distributed job, if it knows that."""

    pid: int
    rank: int | None = None


@dataclass
class Cut:
    """A rank's connection to another host of its job is cut: it may wait for that host for ever."""


@dataclass
class Elsewhere:
    """The session of a rank that may run on another host, which rank 0 has received."""

    rank: int
    session: dict[str, Any]


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
    """The remedy of ``rung`` is prepared, or is measured for ``budget`` seconds; ``ended`` says why the ladder did."""

    ended: str = ""
    rung: str = REMEDIED
    budget: float = 0.0


@dataclass
class Looking:
    """The model is examined for at most ``seconds``; ``at`` tells the user what is recorded, unless it is empty."""

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
    """What the script did: the facts from which the parent decides on another pass."""

    loaders: list[LoaderUse] = field(default_factory=list)
    optimizer_steps: int = 0  # backward passes if no loader was iterated and no optimizer of torch's stepped
    target: int | None = None  # ordinal of the training loader
    horizon: int | None = None  # number of batches after which the loop leaves an epoch early
    rung: str | None = None  # the one under way at the end
    error: str = ""  # the last line of the exception that ended the script
    said: str = ""  # that of the message with which it exited
    exit_code: int = 0
    refused: bool = False  # true if the error shows that the script cannot run twice
    making: bool = False  # true if the error was raised while a loader made a batch


@dataclass
class Finished(Story):
    """The child stops the script, for ``reason``."""

    reason: str = ""


#: Code of the warning that says why a script that trained was not measured.
UNMEASURABLE = "unmeasurable"
#: Code of the warning that the script trains on without its loader.
KEPT_BATCHES = "kept-batches"
#: Code of the warning that the script changes its dataset between epochs, which workers that are kept would not see.
EDITED = "dataset-edited"


def unmeasurable(session: Session) -> str:
    """Return why a script trained on unmeasured, or ""."""
    return next((one.message for one in session.warnings if one.code == UNMEASURABLE), "")


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
    """A kind of event: the class of its data, and the function that enters it in a session, if it is kept."""

    data: type
    enter: Callable[[Session, Any], None] | None = None


KINDS = {
    "window": Kind(Window, _append("windows")),
    "observed": Kind(Observed, _append("observed")),
    "startup": Kind(Startup, _append("startups")),
    "other-start": Kind(OtherStart, _append("other_starts")),
    "stretch": Kind(Stretch, _append("stretches")),
    "batch-step": Kind(BatchStep, _append("batch_steps")),
    "loader": Kind(Loader, _set("loader")),
    "inside": Kind(Inside, _set("inside")),
    "alternative": Kind(Alternative, _append("alternatives")),
    "tail": Kind(Tail, _set("tail")),
    "slow-batches": Kind(SlowBatches, _set("slow_batches")),
    "knobs": Kind(Knobs, _set("knobs")),
    **{name: Kind(Remedy, _set(name)) for name in REMEDIES.values()},
    "rank": Kind(Rank, lambda session, rank: setattr(session, "ranks", [rank])),
    "rank-trial": Kind(RankTrial, _append("rank_trials")),
    "batch": Kind(BatchFacts, _set("batch")),
    "syncs": Kind(Syncs, _set("syncs")),
    "prefix": Kind(Prefix, _set("prefix")),
    "profile": Kind(Profile, _set("profile")),
    "environment": Kind(dict, _update("environment")),
    "device": Kind(dict, _update("device")),
    "caches": Kind(dict, _update("caches")),
    "rung": Kind(Rung, lambda session, rung: session.rungs.update({rung.name: rung})),
    "warning": Kind(Warning_, lambda session, warning: session.warn(warning.code, warning.message, warning.help)),
    "wrote": Kind(Wrote, _add_file),
    "first-batch": Kind(FirstBatch),
    "trainer": Kind(Trainer),
    "member": Kind(Member),
    "cut": Kind(Cut),
    "elsewhere": Kind(Elsewhere),
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
