"""Render result files as a Markdown table: the truth of each recipe, and pipediag's answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .asking import judged, shares

_HEAD = ("recipe", "truth", "verdict (level)", "agrees", "first line / verdict, s", "shares: truth; pipediag")


def of_files(paths: Iterable[Path]) -> str:
    parts = []
    for path in paths:
        result = json.loads(path.read_text())
        rows = result["rows"]
        head = f"{result['device']}, {result['cores']} cores, torch {result['torch']}, {result['date']}"
        lines = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
        lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
        parts.append(f"{head}\n\n" + "\n".join(lines) + f"\n\n{summary(rows)}")
    return "\n\n".join(parts)


def summary(rows: list[dict[str, Any]]) -> str:
    judgements = [judged(row["truth"], row["analyse"]) for row in rows if "truth" in row and "analyse" in row]
    counts = Counter(judgement["agrees"] for judgement in judgements)
    close = [judgement["shares_agree"] for judgement in judgements if "shares_agree" in judgement]
    parts = [f"{len(rows)} recipes, {sum('skipped' in row for row in rows)} skipped"]
    parts.append("verdict agrees: " + (", ".join(f"{name} {count}" for name, count in counts.items()) or "not asked"))
    if close:
        parts.append(f"all shares within 10 points: {sum(close)} of {len(close)}")
    return "; ".join(parts)


def _cells(row: dict[str, Any]) -> list[str]:
    if "skipped" in row:
        return [row["name"], f"skipped: {row['skipped']}", "", "", "", ""]
    truth, answer = row.get("truth", {}), row.get("analyse", {})
    known = _truth(truth)
    verdict = answer.get("verdict") or {}
    said = str(verdict.get("bottleneck", "–" if answer else ""))
    if verdict.get("level"):
        said += f" ({verdict['level']})"
    starved = verdict.get("starved")
    if isinstance(starved, dict):
        value, low, high = (_percent(starved.get(name)) for name in ("value", "low", "high"))
        said += f", starved {value} ({low} to {high})"
    judgement = judged(truth, answer) if truth and answer else {}
    took = f"{_number(answer.get('first_line_s'))} / {_number(answer.get('verdict_s'))}" if answer else ""
    off = max(judgement.get("off", {"": 0.0}).values())
    both = _shares(truth.get("shares", {}))
    both += f"; {_shares(shares(answer))}" if answer else ""
    if "off" in judgement:
        both += f" (off by {off:.0%})"
    return [row["name"], known, said, judgement.get("agrees", ""), took, both]


def _truth(truth: dict[str, Any]) -> str:
    if "rate" not in truth:
        return ", ".join(truth.get("bottlenecks", [])) or truth.get("stopped", "–")
    known = f"{truth['rate']:.3g} of {truth['ceiling']:.3g} steps/s, starved {truth['starved']:.0%}: "
    known += " or ".join(truth["bottlenecks"]) + (", unsteady" if truth["unsteady"] else "")
    alone = (truth.get("alone") or {}).get("transforms_ms") or {}
    if "transform" in truth["bottlenecks"] and alone:
        known += f" ({next(iter(alone))})"
    return known


def _shares(found: dict[str, float]) -> str:
    return " ".join(f"{name} {share:.0%}" for name, share in found.items() if share > 0.005)


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def line(row: dict[str, Any]) -> str:
    """Return a row for the terminal."""
    return " | ".join(_cells(row))
