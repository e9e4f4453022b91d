"""Render the results as Markdown: each tool's marks over all cases and by case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .reading import RIGHT, SILENT, WRONG

SIGNS = {RIGHT: "✓", WRONG: "✗", SILENT: "–"}
NAMES = {
    "pipediag": "pipediag",
    "traceml": "traceml-ai",
    "traceml-edited": "traceml-ai, edited",
    "gpuprof": "gpuprof, edited",
}


def overall(result: Mapping[str, Any]) -> str:
    """Return one row per tool: how many cases it got right, and how many wrong if it gave an answer."""
    rows = ["| tool | lines changed | starved or not | stage | code, with file:line |", "|---|---|--:|--:|--:|"]
    for tool, name in NAMES.items():
        mine = [row for row in result["rows"] if row["tool"] == tool]
        if not mine:
            continue
        version = result["versions"].get(tool, "")
        shares = " | ".join(_share(mine, what) for what in ("cause", "stage", "code"))
        rows.append(f"| {name} {version} | {_changed(mine)} | {shares} |")
    return "\n".join(rows)


def by_case(result: Mapping[str, Any]) -> str:
    """Return one row per case: every tool's marks for the cause, the stage and the code, and its words."""
    tools = [tool for tool in NAMES if any(row["tool"] == tool for row in result["rows"])]
    rows = ["| case | planted | " + " | ".join(NAMES[tool] for tool in tools) + " |"]
    rows.append("|---|---|" + "---|" * len(tools))
    for case in dict.fromkeys(row["case"] for row in result["rows"]):
        mine = {row["tool"]: row for row in result["rows"] if row["case"] == case}
        planted = " or ".join(next(iter(mine.values()))["right"])
        cells = " | ".join(_cell(mine[tool]) if tool in mine else "" for tool in tools)
        rows.append(f"| `{case}` | {planted} | {cells} |")
    return "\n".join(rows)


def _share(rows: Sequence[Mapping[str, Any]], what: str) -> str:
    # Cases without code to name are excluded.
    asked = [row for row in rows if what != "code" or row["lines"]]
    right, wrong = (sum(row["marks"][what] == mark for row in asked) for mark in (RIGHT, WRONG))
    if not right and not wrong:
        return "–"
    return f"{right} of {len(asked)}" + (f" ({wrong} wrong)" if wrong else "")


def _changed(rows: Sequence[Mapping[str, Any]]) -> str:
    added, indented = ([row[what] for row in rows] for what in ("added", "indented"))
    if not any(added):
        return "none"
    low, high = min(indented), max(indented)
    return f"{max(added)} added, {low if low == high else f'{low} to {high}'} indented"


def _cell(row: Mapping[str, Any]) -> str:
    signs = " ".join(SIGNS[row["marks"][what]] for what in ("cause", "stage", "code"))
    words = str(row["words"]).replace("|", "\\|")
    return f"{signs} {words}" + (f" (exit code {row['exit_code']})" if row["exit_code"] else "")
