"""Define the blocks of a document: what a report says. A writer for each format decides how they look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..analysis.summary import Tone


@dataclass(frozen=True)
class Title:
    """The first block: the answer, a note on it, and what was measured."""

    headline: str
    note: str = ""
    subject: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Paragraph:
    """Text. A ``list`` of figures is not broken at hyphens; a ``line`` is not broken at all."""

    text: str
    layout: Literal["prose", "list", "line"] = "prose"


@dataclass(frozen=True)
class Location:
    """A named place in the user's code, for the paragraph before it; ``where`` is file:line or empty."""

    label: str
    name: str
    where: str


@dataclass(frozen=True)
class Listing:
    """Entries of a list; ``code`` is quoted from the user's files. ``details`` explain the paragraph before them."""

    entries: Sequence[str]
    code: bool = False
    details: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells."""

    headers: Sequence[str]
    align: str  # ``l`` or ``r`` for each column
    rows: Sequence[Sequence[str]]
    bars: Sequence[float] = ()  # a share from 0 to 1 for each row, or empty
    ruled: bool = True  # False for a small table that belongs to the lines above it
    code: bool = False  # the first column holds names of code
    narrow: bool = False  # headers break at their spaces
    extra: bool = False  # too long for a terminal


@dataclass(frozen=True)
class Code:
    """Lines to be copied as they are: commands, or a ``diff``."""

    label: str
    lines: Sequence[str]
    language: Literal["", "diff"] = ""


@dataclass(frozen=True)
class Advice:
    """A numbered recommendation; ``savings`` is empty if unknown, ``code`` are lines that follow ``how``."""

    number: int
    title: str
    stage: str
    gain: str
    savings: str
    reasons: Sequence[str]
    how: str
    code: Sequence[str]
    risk: str


@dataclass(frozen=True)
class Check:
    """One entry of a checklist: its result in a word, the figures, and what would fix it."""

    status: str
    title: str
    figures: str
    todo: Sequence[str]
    tone: Tone


@dataclass(frozen=True)
class Checklist:
    checks: Sequence[Check]


@dataclass(frozen=True)
class Section:
    """Blocks under a title, which begins with a small letter."""

    title: str
    blocks: Sequence[Block]
    #: Orders the sections of a file that is read from its top. A terminal shows them as they come in the document: its
    #: last lines are the ones in view.
    page: int = 0


Block = Title | Paragraph | Location | Listing | Table | Code | Advice | Checklist | Section


def filled(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks that have any content."""
    found: list[Block] = []
    for block in blocks:
        match block:
            case Section(blocks=inner):
                kept = filled(inner)
                found += [replace(block, blocks=kept)] if kept else []
            case Paragraph("") | Location(name="") | Listing([]) | Table(rows=[]):
                pass
            case _:
                found.append(block)
    return found
