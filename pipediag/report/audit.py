"""Render an audit's checklist as text, Markdown or JSON."""

from __future__ import annotations

from ..analysis.audit import FAILED, PASSED, UNMEASURABLE, Audit, Item
from . import advice, rows
from .tables import cell
from .text import bullet, warning_texts, wrapped

_STATUSES = (FAILED, PASSED, UNMEASURABLE)
_COLOURS = {FAILED: "31", PASSED: "32", UNMEASURABLE: "33"}
_INDENT = " " * (len(UNMEASURABLE) + 2)


def headline(audit: Audit) -> str:
    """Return the number of items per status."""
    counts = ", ".join(f"{audit.count(status)} {status}" for status in _STATUSES)
    return f"AUDIT: {counts}" + ("  (PARTIAL)" if audit.diagnosis.partial else "")


def render_text(audit: Audit, colour: bool = False) -> str:
    """Return plain text; ``colour`` adds colours for a terminal."""
    lines = [headline(audit), rows.setting(audit.diagnosis)]
    for item in audit.items:
        lines += ["", *_lines(item, colour)]
    lines += advice.terminal(audit.diagnosis)
    if audit.diagnosis.warnings:
        lines += ["", "warnings:", *map(bullet, warning_texts(audit.diagnosis.warnings))]
    return "\n".join(lines) + "\n"


def _lines(item: Item, colour: bool) -> list[str]:
    word = f"{item.status.upper() if item.status == FAILED else item.status:<{len(UNMEASURABLE)}}"
    if colour:
        word = f"\x1b[{_COLOURS[item.status]}m{word}\x1b[0m"
    told = [wrapped(text, _INDENT + mark) for text, mark in ((item.told, ""), *((text, "-> ") for text in todo(item)))]
    return [f"{word}  {item.title}", *told]


def render_markdown(audit: Audit) -> str:
    """Return Markdown for a pull request, or for the summary of a CI job."""
    lines = [f"# {headline(audit)}", "", f"`{rows.setting(audit.diagnosis)}`", ""]
    lines += ["| | check | measured | what to do |", "|---|---|---|---|"]
    for item in audit.items:
        status = f"**{item.status}**" if item.status == FAILED else item.status
        cells = (status, item.title, item.told, "<br>".join(map(cell, todo(item))))
        lines.append(f"| {cells[0]} | {cell(cells[1])} | {cell(cells[2])} | {cells[3]} |")
    lines += advice.markdown(audit.diagnosis)
    if audit.diagnosis.warnings:
        lines += ["", "## Warnings", "", *(f"- {warning}" for warning in warning_texts(audit.diagnosis.warnings))]
    return "\n".join(lines) + "\n"


def todo(item: Item) -> list[str]:
    """Return what would fix an item, one line each."""
    return [f"{one.title}: {advice.gain_text(one)}" for one in item.advice] + item.todo
