"""Save and load a remedy that was measured to be faster: what it moves, for which loader, and under which versions.

The file holds no code and no proof. ``pipediag run`` certifies the same transforms again, on the run's own batches, and
moves them only if they are what they were. This module imports no torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from .._version import __version__
from ..errors import PlanRefused, SessionFileError
from ..report.files import write_whole
from ..session import Remedy, Session
from ..session.codec import build, read_json

VERSION = 4
_AGAIN = "make it again with: pipediag analyze --apply --plan FILE SCRIPT"
#: Packages whose version must be the same as when the plan was made.
_PACKAGES = ("torch", "torchvision")
#: Characters of a reason that are told.
_LONGEST = 1000


#: Function, file, line and its text.
SavedCall = tuple[str, str, int, str]


@dataclass(frozen=True)
class SavedPlan:
    """Contents of a plan file."""

    dataset: str  # module and name of the dataset's class
    batch_size: int | None  # of the loader; None if it yields single samples
    device: str  # the type of the device
    #: Name and digest (:mod:`pipediag.replay.fingerprint`) of every link that moves; with ``calls`` empty for the
    #: hand-off alone, or a cache alone.
    moved: tuple[tuple[str, str], ...]
    #: Every call of plain code that was recorded when the plan was made. Chance may decide which are.
    calls: tuple[SavedCall, ...] = ()
    decodes: bool = False  # True if JPEGs are decoded on the device
    caches: bool = False  # True if what library calls read and decode is kept
    script: str = ""  # the script's file name, or the module's name
    where: str = ""  # ``file:line`` of the loop that iterates the loader
    order: int = 0  # the loader's number among those that are iterated there
    #: Of pipediag and of the packages whose functions are replayed.
    versions: dict[str, str] = field(default_factory=dict)
    speedup: dict[str, float | None] = field(default_factory=dict)  # as measured, with its interval
    #: Path, start and links of each :class:`pipediag.replay.plan.Piece`; empty if what moves must be tried again,
    #: because calls of plain code do.
    pieces: tuple[tuple[tuple[int, ...], int, tuple[str, ...]], ...] = ()
    refused: tuple[str, ...] = ()  # as in :class:`pipediag.replay.plan.Plan`

    def to_dict(self) -> dict[str, Any]:
        return {"pipediag_plan": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Any) -> SavedPlan:
        """Return the plan from its JSON form.

        Raises:
            PlanRefused: the data is not a plan, is damaged, or was written by another version of pipediag.
        """
        version = data.get("pipediag_plan") if isinstance(data, dict) else None
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise _refusal("this is no plan of pipediag's")
        if version > VERSION:
            raise PlanRefused("the plan was written by a newer pipediag; update this one")
        if version < VERSION:
            raise _refusal("the plan was written by an older pipediag")
        try:
            plan = build(cls, data)
        except (TypeError, ValueError) as error:
            raise _refusal(f"the plan is damaged ({error})") from None
        if missing := {"pipediag", "torch"} - {*plan.versions}:
            raise _refusal(f"the plan is damaged (it has no version of {min(missing)})")
        return plan

    def check(self, script: str) -> None:
        """Raise PlanRefused if the plan was made for another script, or with other versions."""
        if self.script != name_of(script):
            raise _refusal(f"the plan was made for {self.script}, not for {name_of(script)}")
        here = versions()
        for package, then in self.versions.items():
            if here.get(package) != then:
                raise _refusal(f"the plan was made with {package} {then}, here is {here.get(package, 'none')}")

    def names(self, dataset: str, batch_size: int | None, where: str, order: int) -> bool:
        """Return whether a loader is the one that the plan was made for: the place names it, the rest is a check."""
        placed = (_at(where), order) == (_at(self.where), self.order)
        return placed and (dataset, batch_size) == (self.dataset, self.batch_size)

    def may_follow(self, where: str, order: int) -> bool:
        """Return whether the plan's loader may still come after this one, which is iterated at the same line."""
        return _at(where) == _at(self.where) and order < self.order

    def refusal(self, dataset: str, batch_size: int | None, where: str, order: int) -> PlanRefused:
        """Return the error for a script that trains on another loader."""
        mine = f"{self.dataset}, batch {self.batch_size}, {_place(self.where, self.order)}"
        theirs = f"{dataset}, batch {batch_size}, {_place(where, order)}"
        return _refusal(f"the plan was made for another loader ({mine}) than the one that trains ({theirs})")

    def check_device(self, device: str) -> None:
        """Raise PlanRefused if the remedy was measured on another type of device."""
        if device != self.device:
            raise _refusal(f"the plan was made for training on {self.device}, this is on {device}")

    def check_handoff(self, why_not: str) -> None:
        """Raise PlanRefused if the hand-off alone is impossible now, for the reason ``why_not``."""
        if why_not:
            raise _refusal(f"the plan hands batches over, and this loader cannot: {why_not}")

    def check_moved(self, moved: Sequence[tuple[str, str]], undecoded: str = "", why_none: str = "") -> None:
        """Raise PlanRefused if other links move now, or a transform's code or the values it holds have changed.

        ``undecoded`` says why JPEGs are not decoded on the device now; empty if they are. ``why_none`` says why nothing
        moves, if nothing does.
        """
        if self.decodes and undecoded:
            raise _refusal(f"the plan decodes JPEGs on the {self.device}, which fails now: {undecoded}")
        then, now = [name for name, _ in self.moved], [name for name, _ in moved]
        if then != now:
            raise _other(then, now, why_none)
        for (name, digest), (_, own) in zip(self.moved, moved, strict=True):
            if digest != own:
                edits = "if the script itself changes it between epochs, run it without a plan"
                raise _refusal(f"{name} is not what it was when the plan was made ({edits})")

    def check_calls(
        self, calls: Sequence[SavedCall], line_of: Callable[[str, int], str | None], why_none: str = ""
    ) -> None:
        """Raise PlanRefused if none of the plan's calls of plain code is recorded now, or one's line has changed.

        ``line_of`` returns the present text of a line, or None if the file is not known. ``why_none`` says why nothing
        moves, if nothing does.
        """
        if self.calls and not {call[:3] for call in self.calls} & {call[:3] for call in calls}:
            raise _other([*map(spelled, self.calls)], [*map(spelled, calls)], why_none)
        for call in self.calls:
            if line_of(*call[1:3]) not in (None, call[3]):
                raise _refusal(f"{spelled(call)} is not what it was when the plan was made")


def spelled(call: SavedCall) -> str:
    """Return a call as a report names it."""
    function, file, line, _ = call
    return f"{function} ({file}:{line})"


def _other(then: Sequence[str], now: Sequence[str], why_none: str) -> PlanRefused:
    """Return the error: something else moves than the plan says."""
    moves = ", ".join(now) or ("nothing" if not why_none else f"nothing ({why_none})")
    return _refusal(f"the plan moves {', '.join(then)}, of this loader moves {moves}")


def _refusal(why: str) -> PlanRefused:
    """Return the error in one line: what a damaged file holds may have several, and any length."""
    told = " ".join(why.split())
    return PlanRefused(f"{told if len(told) <= _LONGEST else told[:_LONGEST] + '…'}; {_AGAIN}")


def read(path: str) -> SavedPlan:
    """Return the plan in a file.

    Raises:
        PlanRefused: the file cannot be read, or holds no valid plan.
    """
    try:
        data = read_json(path)
    except SessionFileError as error:
        raise _refusal(str(error)) from None
    try:
        return SavedPlan.from_dict(data)
    except PlanRefused as refused:
        raise PlanRefused(f"{path}: {refused}") from None


def write(session: Session, remedy: Remedy, speedup: dict[str, float | None], path: str) -> None:
    """Save a remedy of a session in the file ``path``.

    Raises:
        SessionFileError: the file cannot be written.
    """
    assert session.loader is not None, "a remedy was measured on a loader"
    argv = session.script.argv
    plan = dataclasses.replace(
        SavedPlan.from_dict(remedy.plan),
        script=name_of(argv[1] if argv[0] == "-m" else argv[0]),
        where=session.loader.iterated or session.loader.where,
        order=session.loader.order,
        speedup=speedup,
    )
    try:
        write_whole(path, (json.dumps(plan.to_dict(), indent=1) + "\n").encode())
    except OSError as error:
        raise SessionFileError(f"{path} could not be written ({error.strerror})") from None


def versions() -> dict[str, str]:
    """Return the versions of all installed packages that determine a replay's results."""
    found = {"pipediag": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def name_of(script: str) -> str:
    """Return the name that identifies a script: its file name, or a module's dotted name."""
    return os.path.basename(script)


def _at(where: str) -> str:
    """Return ``file:line`` without the folder, which depends on where the script was started."""
    return os.path.basename(where)


def _place(where: str, order: int) -> str:
    number = f" as number {order + 1}" if order else ""
    return f"iterated{number} at {_at(where)}"


#: Variable with which tests move transforms on a CPU: "1" allows it.
MOVES_ON_CPU = "PIPEDIAG_TEST_MOVES_ON_CPU"


def why_not_moved(device: str) -> str:
    """Return why nothing moves to this type of device unless that was measured; empty if it may."""
    if device != "cpu" or os.environ.get(MOVES_ON_CPU) == "1":
        return ""
    return "on a CPU nothing moves unless it was measured to be faster (pipediag analyze --apply --plan FILE SCRIPT)"
