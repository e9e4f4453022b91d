"""Render result files as Markdown: a line for each case, and a summary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from .rows import CLOSE, NEVER_BELOW, Row, beside_plain, is_close, never_worse, same_losses

_Cell = Callable[[Row], str]


def of_files(paths: Iterable[Path]) -> str:
    """Return the tables of result files; all predictions are in one table at the end.

    A case in several files appears once, with the analysis that took longest.
    """
    results = [json.loads(path.read_text()) for path in paths]
    parts = []
    for result in results:
        if not result.get("training", True):
            continue
        head = f"{result['part']}, {result['device']}, {result['cores']} cores, torch {result['torch']}"
        head += ", --quick: its speeds mean nothing" if result["quick"] else ""
        parts.append(f"{head}\n\n{table(result['part'], result['rows'])}\n\n{summary(result['rows'])}")
    longest: dict[str, Row] = {}
    for row in (row for result in results for row in result["rows"]):
        if row.get("analysis_s", 0.0) >= longest.get(row["case"], {}).get("analysis_s", 0.0):
            longest[row["case"]] = row
    return "\n\n".join([*parts, f"predicted and measured\n\n{predictions([*longest.values()])}"])


def table(part: str, rows: Sequence[Row]) -> str:
    columns = _EXAMPLES if part == "examples" else _PLANTED
    return _markdown([head for head, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


def summary(rows: Sequence[Row]) -> str:
    """Return the rows' evidence for each claim, in sentences."""
    outcomes, worse = Counter(row["status"] for row in rows), Counter(never_worse(row) for row in rows)
    lines = [f"{len(rows)} cases: " + ", ".join(f"{count} {name}" for name, count in outcomes.items())]
    lines.append(
        f"never slower than plain by more than {1 - NEVER_BELOW:.0%}: "
        + ", ".join(f"{count} {name}" for name, count in worse.items())
        + " (plain: no plan was written, the script stays as it is)"
    )
    losses = Counter(same_losses(row) for row in rows if row["run_with"] == "plan")
    lines.append("losses of `run` with a plan: " + (", ".join(f"{n} {name}" for name, n in losses.items()) or "none"))
    unasked = [row for row in rows if row["run_with"] == "no plan"]
    alone = Counter(beside_plain(row) for row in unasked)
    lines.append(
        "`run` without a plan, if none was written, compared with plain: "
        + (", ".join(f"{count} {name}" for name, count in alone.items()) or "none")
    )
    checks = sorted(seconds for row in rows for seconds in row["checking_s"])
    if checks:
        lines.append(
            f"windows repeated because of a spot check: {len(checks)}; it took {checks[0]:.2f} to {checks[-1]:.2f} s"
        )
    return "\n".join(f"- {line}" for line in lines)


def predictions(rows: Sequence[Row]) -> str:
    """Return predicted and measured speedups of the cases with a measured remedy, and the share of close ones."""
    tried = [row for row in rows if row.get("measured")]
    columns: list[tuple[str, _Cell]] = [
        ("case", lambda row: row["case"]),
        ("predicted before", lambda row: _speedup(row["predicted_blind"])),
        ("predicted, knowing what moves", lambda row: _speedup(row["predicted"])),
        ("measured", lambda row: _speedup(row["measured"])),
        ("measured / predicted before", lambda row: _over(row["measured"], row["predicted_blind"])),
        ("within", lambda row: _within(row["predicted_blind"], row["measured"])),
    ]
    lines = [_markdown([head for head, _ in columns], [[cell(row) for _, cell in columns] for row in tried])]
    in_vain = [row for row in rows if row.get("predicted_blind") and not row.get("measured")]
    for name, key in (("before", "predicted_blind"), ("knowing what moves", "predicted")):
        known = [row for row in tried if row[key]]
        close = sum(is_close(row[key], row["measured"]) for row in known)
        covered = sum(_covers(row[key], row["measured"]["value"]) for row in known)
        lines.append(
            f"- predicted {name}: {close} of {len(known)} within {CLOSE:.0%}, {covered} of {len(known)} intervals hold "
            f"the measured value; {len(tried) - len(known)} measured without a prediction, "
            f"{sum(row['applied'] for row in tried if not row[key])} of which gain"
        )
    lines.append(f"- predicted before, but not measured: {', '.join(row['case'] for row in in_vain) or 'none'}")
    return f"{lines[0]}\n\n" + "\n".join(lines[1:])


def line(row: Row) -> str:
    """Return a row as a progress line."""
    parts = [row["case"], row["status"], row.get("why") or ""]
    parts += [f"measured {_speedup(row['measured'])}"] if row.get("measured") else []
    parts += [f"reached {_speedup(row['reached'])}"] if row.get("reached") else []
    parts += [f"{name} {_speedup(found)}" for name, found in row["ratios"].items()]
    parts += [f"never worse: {never_worse(row)}", f"losses: {same_losses(row)}"]
    parts += [f"{form} FAILED: {why}" for form, why in row["failed"].items()]
    parts += [row["error"], f"{row['took_s']:.0f} s"]
    return " | ".join(part for part in parts if part)


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return tabulate(lines, headers=heads, tablefmt="pipe", disable_numparse=True)


def _rate(name: str) -> _Cell:
    def cell(row: Row) -> str:
        found = row.get("steps_per_s", {}).get(name)
        return f"{found['value']:.3g}" if found else "-"

    return cell


def _speedup(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    low, high = (f"{found[end]:.2f}" if found[end] is not None else "?" for end in ("low", "high"))
    return f"{found['value']:.2f} ({low} to {high})"


def _over(measured: Mapping[str, Any], prediction: Mapping[str, Any] | None) -> str:
    return f"{measured['value'] / prediction['value']:.2f}" if prediction else "-"


def _within(prediction: Mapping[str, Any] | None, measured: Mapping[str, Any]) -> str:
    return "-" if prediction is None else "yes" if is_close(prediction, measured) else "no"


def _covers(prediction: Mapping[str, Any], value: float) -> bool:
    low, high = prediction["low"], prediction["high"]
    return (low is None or low <= value) and (high is None or value <= high)


def _outcome(row: Row) -> str:
    return row["status"] if row["applied"] or not row.get("why") else f"{row['status']}: {row['why']}"


def _plainly(key: str) -> _Cell:
    def cell(row: Row) -> str:
        return f"{row[key]:.3g}" if row.get(key) else "-"

    return cell


def _certificate(row: Row) -> str:
    found = row.get("certificate")
    if not found:
        return "-"
    if not (found["passed"] and found["draws_equal"]):
        return "failed"
    if None in (found["levels"], found["of_range"]):
        return "not finite"
    apart = [f"{found['levels']:g} levels"] if found["levels"] else []
    apart += [f"{found['of_range']:.0e} of the range"] if found["of_range"] else []
    return ", ".join(apart) or "equal"


def _losses(row: Row) -> str:
    found, verdict = row["losses"].get("run"), same_losses(row)
    far = found["largest"] if found else None
    return f"{verdict} ({far:.0e})" if far and verdict not in ("equal", "-") else verdict


def _of_ratios(name: str) -> _Cell:
    return lambda row: row["failed"].get(name.split("/")[0], "")[:60] or _speedup(row["ratios"].get(name))


_CASE: tuple[str, _Cell] = ("case", lambda row: row["case"])
_REMEDY: list[tuple[str, _Cell]] = [
    ("remedy", _outcome),
    ("pixels", _certificate),
]
_TRAINING: list[tuple[str, _Cell]] = [
    ("run with", lambda row: row["run_with"]),
    ("run / plain", _of_ratios("run/plain")),
    ("patched / run", _of_ratios("patched/run")),
    ("never worse", never_worse),
    ("losses", _losses),
]
_EXAMPLES: list[tuple[str, _Cell]] = [
    _CASE,
    ("device-cached", _rate("ceiling")),
    ("baseline", _rate("baseline")),
    ("raw supply", _plainly("raw_supply")),
    ("remedied", _rate("remedied")),
    ("remedied / lower bound", _plainly("reached_in_trial")),
    ("run / lower bound", lambda row: _speedup(row.get("reached"))),
    ("predicted", lambda row: _speedup(row.get("predicted"))),
    ("measured", lambda row: _speedup(row.get("measured"))),
    *_REMEDY,
    *_TRAINING,
]
_PLANTED: list[tuple[str, _Cell]] = [
    _CASE,
    ("verdict", lambda row: row["verdict"] or "-"),
    ("baseline", _rate("baseline")),
    ("device-cached", _rate("ceiling")),
    ("remedied", _rate("remedied")),
    ("measured", lambda row: _speedup(row.get("measured"))),
    *_REMEDY,
    *_TRAINING,
]
