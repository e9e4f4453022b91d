"""Render the report for a terminal: one screen, the verdict first, warnings last."""

from __future__ import annotations

import sys
import textwrap

from tabulate import tabulate

from ..analysis import Diagnosis
from . import advice, knobs, model, remedy, rows
from .text import WIDTH, bullet, warning_texts

_BAR = 20
_COLOURS = {"severe": "31", "mild": "33", "none": "32"}


def render_terminal(diagnosis: Diagnosis, colour: bool = False, fancy: bool = False) -> str:
    """Return plain text; ``colour`` adds colours for a terminal, ``fancy`` block characters for the bars."""
    verdict = diagnosis.verdict
    title = rows.headline(diagnosis)
    if colour and verdict.band in _COLOURS:
        title = f"\x1b[1;{_COLOURS[verdict.band]}m{title}\x1b[0m"
    lines = [title + rows.level(diagnosis), rows.setting(diagnosis), ""]
    lines += textwrap.wrap(verdict.sentence, WIDTH)
    if verdict.culprit is not None:
        where = f"  {verdict.culprit.where}" if verdict.culprit.where else ""
        lines.append(f"culprit: {verdict.culprit.name}{where}")
    step = rows.step_line(diagnosis)
    if step:
        lines += ["", step]
    table = rows.stage_rows(diagnosis)
    if table:
        lines += ["", _table(table, "█" if fancy else "#")]
    rungs = rows.rung_line(diagnosis)
    if rungs:
        lines += ["", *textwrap.wrap(rungs, WIDTH, subsequent_indent="  ", break_on_hyphens=False)]
    inside = rows.worker_rows(diagnosis)
    if inside:
        lines += ["", "inside a worker, ms for each sample:", _worker_table(inside)]
    for title, entries in (
        ("hottest lines there", rows.hot_lines(diagnosis)),
        ("not measured", rows.not_measured(diagnosis)),
        ("seen beside the clock", rows.evidence_lines(diagnosis)),
    ):
        if entries:
            lines += ["", title + ":", *(bullet(entry) for entry in entries)]
    lines += knobs.terminal(diagnosis)
    lines += advice.terminal(diagnosis)
    lines += model.terminal(diagnosis)
    lines += remedy.terminal(diagnosis)
    if diagnosis.warnings:
        lines += ["", "warnings:", *map(bullet, warning_texts(diagnosis.warnings))]
    return "\n".join(lines) + "\n"


def render_for(diagnosis: Diagnosis, stream: object = None) -> str:
    """Return the report in a form that the stream can show."""
    stream = stream or sys.stdout
    isatty = getattr(stream, "isatty", None)
    fancy = "█".encode(encoding_of(stream), "replace") != b"?"
    return fitting(render_terminal(diagnosis, colour=bool(isatty and isatty()), fancy=fancy), stream)


def fitting(text: str, stream: object) -> str:
    """Return the text with the stream's unsupported characters escaped: names come from the user's code and files."""
    encoding = encoding_of(stream)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def encoding_of(stream: object) -> str:
    """Return the encoding of a stream; ASCII if it has none or an unknown one."""
    encoding = str(getattr(stream, "encoding", None) or "ascii")
    try:
        "".encode(encoding)
    except LookupError:
        return "ascii"
    return encoding


def _table(table: list[rows.StageRow], mark: str) -> str:
    return tabulate(
        [[r.stage, r.cost, r.interval, r.share, r.without, mark * round(_BAR * r.bar)] for r in table],
        headers=["where a step goes", "ms", "95 % interval", "share", "steps/s without it", ""],
        tablefmt="simple",
        disable_numparse=True,
        colalign=("left", "right", "left", "right", "right", "left"),
    )


def _worker_table(table: list[rows.WorkerRow]) -> str:
    text = tabulate(
        [[r.name, r.wall, r.cpu, r.share, r.where] for r in table],
        headers=["", "wall", "cpu", "share", ""],
        tablefmt="plain",
        disable_numparse=True,
        colalign=("left", "right", "right", "right", "left"),
    )
    return textwrap.indent(text, "  ")
