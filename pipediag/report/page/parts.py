"""Define what a page has besides the blocks of a document: drawings, charts, and tables that fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...session import Pictured
from ..document import Block, Table
from .svg import Drawn


@dataclass(frozen=True)
class Drawing:
    drawn: Drawn


@dataclass(frozen=True)
class Flame:
    """A flame graph; ``whole`` names what all of it is."""

    drawn: Drawn
    whole: str


@dataclass(frozen=True)
class Chart:
    """A table with a drawing in each row."""

    caption: str
    headers: Sequence[str]
    align: str  # ``l`` or ``r`` for each column, ``g`` for a drawing, ``c`` for a place in code, ``s`` for source code
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Lanes:
    """Rows of a figure, all with the same axis of time, which begins at ``begin`` and is ``seconds`` long."""

    rows: Sequence[tuple[str, Drawn]]  # each name, with the drawing beside it
    begin: float
    seconds: float
    legend: Sequence[tuple[str, str]]  # each colour, a class of the stylesheet, with what it stands for
    points: Sequence[tuple[str, str, str]]  # begin, end and a text for each moment of which the page's script tells


@dataclass(frozen=True)
class Sortable(Chart):
    """A table of raw numbers that sorts by column; folded until it is opened."""


@dataclass(frozen=True)
class Pictures:
    """Samples as the CPU and the device made them; ``left_out`` is how many more there are."""

    samples: Sequence[Pictured]
    left_out: int


@dataclass(frozen=True)
class Facts:
    pairs: Sequence[tuple[str, str]]


PageBlock = Block | Drawing | Flame | Chart | Lanes | Sortable | Pictures | Facts


@dataclass(frozen=True)
class Part:
    """A section of the page: its name in addresses, its title, a sentence on how to read it, and its blocks."""

    name: str
    title: str
    blocks: Sequence[PageBlock]
    lead: str = ""


@dataclass(frozen=True)
class Page:
    """A page below its summary: what it is about, for the title of the window, and its parts, closed if it says so."""

    title: str
    parts: Sequence[Part]
    closed: bool = False


def with_content(parts: Sequence[Part | None]) -> list[Part]:
    """Return the parts that have anything to show."""
    return [part for part in parts if part is not None and part.blocks]


def with_drawings(table: Table, caption: str, header: str, drawings: Sequence[Drawn]) -> Chart:
    """Return a document's table with a drawing behind the first cell of each row."""
    first, *headers = table.headers
    rows = [[name, drawn, *cells] for (name, *cells), drawn in zip(table.rows, drawings, strict=True)]
    return Chart(caption, [first, header, *headers], f"{table.align[0]}g{table.align[1:]}", rows)
