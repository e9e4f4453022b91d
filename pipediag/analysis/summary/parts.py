"""Define the parts of a summary, which says on one screen what a result means; shorten the paths in it."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from typing import Literal

from ...session import Session

Tone = Literal["", "good", "doubtful", "bad"]
#: Paths up to this length are named in full, and of longer ones no more than this.
_LONG, _LONGEST = 40, 60
#: Folders of installed packages.
_PACKAGES = tuple(f"{name}{os.sep}" for name in ("site-packages", "dist-packages"))
#: Places in a text. Both begin where a word begins only, which keeps the search linear in long texts.
_PLACE = re.compile(r"(?<![^\s(),'\"])[^\s(),'\"]+:\d+")
#: An absolute path of at least two parts, not in an address. Those of the machine itself stay.
_ABSOLUTE = re.compile(r"(?<![^\s(,'\"=`])/(?!dev/|proc/|sys/)[^\s/(),;'\"`]+(?:/[^\s/(),;'\"`]+)+")


@dataclass(frozen=True)
class StageCost:
    """A stage and its cost: milliseconds of a step, share of the step from 0 to 1, and ``file:line`` if known."""

    name: str
    ms: float
    share: float
    where: str = ""
    note: str = ""  # more about the cost: how uncertain it is, or which of several transforms takes most of it


@dataclass(frozen=True)
class Action:
    """What to do: a title, the gain and how it is known, and the commands or lines of code that do it."""

    title: str
    gain: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rate:
    """Steps per second in one case, and a note about the figure."""

    name: str
    steps_per_s: float
    note: str = ""


@dataclass(frozen=True)
class Summary:
    """The answer in parts; each report format decides how they look."""

    headline: str  # the answer
    figures: str = ""  # its figures, to follow a colon
    certainty: str = ""  # their interval, and how sure the answer is
    tone: Tone = ""  # good, doubtful or bad
    subject: str = ""  # what was measured
    rates: list[Rate] = field(default_factory=list)  # the rates to compare: now and possible, or before and after
    holding: str = ""  # the rank that holds up a distributed job, in a sentence; empty if none is known
    basis: str = ""  # how it is known where the time goes
    #: The stages that cost time: the verdict's first, then the most expensive.
    causes: list[StageCost] = field(default_factory=list)
    #: The other stages, the most expensive first, and the model's own step.
    rest: list[StageCost] = field(default_factory=list)
    findings_title: str = ""
    #: Rows of an audit, a comparison or a sweep, each as a name and what was found.
    findings: list[tuple[str, str]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)  # the best changes, the best first
    nothing_to_gain: str = ""  # why there is nothing to do; empty if there is
    tried: str = ""  # what was tried and is not kept, and why; empty if nothing was
    careful: list[str] = field(default_factory=list)  # what the reader must know before trusting or repeating this
    notes: int = 0  # number of notes that are left out
    unit: str = "each step"  # what the milliseconds of the causes are of
    next: str = ""  # the next command to type, complete, after words that say when; empty if there is none


def short(session: Session, where: str) -> str:
    """Return ``file:line`` relative to the script's folder or to the installed packages, else with its last folder."""
    in_a_package = next((where.rpartition(folder)[2] for folder in _PACKAGES if folder in where), "")
    inside = _in_the_scripts_folder(session, where) or in_a_package
    if inside or not os.path.isabs(where):
        return inside or where
    return os.sep.join(where.split(os.sep)[-2:])


def _in_the_scripts_folder(session: Session, where: str) -> str:
    """Return a place relative to the script's folder; empty if it lies elsewhere.

    It may be relative to the folder in which the analysis ran, which is not known.
    """
    folder = os.path.dirname(session.script.argv[0]) if session.script.argv else ""
    parts = where.split(os.sep)
    for count in range(len(parts) - 1, 0, -1):
        above = os.sep.join(parts[:count])
        if above and (folder == above or folder.endswith(os.sep + above)):
            return os.sep.join(parts[count:])
    return ""


def shorter_paths(session: Session, text: str) -> str:
    return _ABSOLUTE.sub(lambda found: short(session, found[0]), shorter_places(session, text))


def shorter_places(session: Session, text: str) -> str:
    """Shorten the places in a text; commands keep their paths."""
    return _PLACE.sub(lambda found: short(session, found[0]), text)


def shortened(session: Session, command: str) -> str:
    """Return a command with the script's own arguments as an ellipsis."""
    argv = session.script.argv
    tail = shlex.join(argv)
    if not argv or not command.endswith(tail):
        return command
    rest = " ..." if len(argv) > 1 else ""
    return command[: -len(tail)] + shlex.quote(os.path.basename(argv[0])) + rest


def file(path: str) -> str:
    """Return the end of a long or absolute path: its last folder and its name, as far as they are short."""
    end = os.sep.join(path.split(os.sep)[-2:])
    if os.path.isabs(path) and len(end) <= _LONGEST:
        return end.lstrip(os.sep)
    return path if len(path) <= (_LONGEST if end == path else _LONG) else f"...{(os.sep + end)[-_LONGEST:]}"
