"""Get pipediag's answer on a recipe, with its duration, and compare it with the truth."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from . import running
from .catalogue import Place, Recipe

#: Groups of stages for comparison, with the names that pipediag and the truth use.
GROUPS = {
    "compute": ("compute",),
    "transfer": ("transfer",),
    "hand-off": ("hand-off", "handoff", "hand_off", "ipc", "collate", "worker"),
    "load": ("load", "storage"),
    "transform": ("transform",),
}
#: Maximum difference of any group's share if the shares agree.
TOLERANCE = 0.10
_FIRST_BATCH = ("first batch", "training loader at")
_USEFUL = re.compile(r"steps/s|starved|waits? for data|keeps up|bottleneck", re.IGNORECASE)
_VERDICT = re.compile(r"^(BOTTLENECK|VERDICT|INCONCLUSIVE|NO BOTTLENECK|NOT STARVED)\b|bottleneck: ", re.IGNORECASE)
_GRACE = 240.0  # seconds in addition to the budget: startup, further passes, report


def ask(
    recipe: Recipe, at: Place, budget: float, options: tuple[str, ...] = (), keep: Path | None = None
) -> dict[str, Any]:
    """Run ``pipediag analyze`` on the script; return verdict, shares, seconds and progress messages.

    The whole session is copied to ``keep``, if given.
    """
    running.ready(recipe, at)
    said: list[tuple[float, str]] = []

    def heard(when: float, line: str) -> None:
        mark = line.rfind("pipediag: ")
        if mark >= 0 or _VERDICT.search(line):
            said.append((round(when, 2), line[max(mark, 0) :][:200]))

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "session.json"
        order = ["-m", "pipediag", "analyze", "--budget", f"{budget:g}", *options, "-o", str(report)]
        arguments = [*order, *running.command(recipe, at)]
        env = running.environment(recipe, at)
        limit = 2 * budget + _GRACE if recipe.loader else budget + _GRACE / 4
        ran = running.run(arguments, running.cwd(recipe, at), env, limit, heard)
        content = json.loads(report.read_text()) if report.exists() else {}
        if content and keep is not None:
            keep.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(report, keep)
    answer: dict[str, Any] = {"code": ran.code, "took": round(ran.seconds, 1), "said": said[:60]}
    first = next((when for when, line in said if any(mark in line for mark in _FIRST_BATCH)), None)
    useful = next((when for when, line in said if _USEFUL.search(line) and "pipediag" in line), None)
    verdict = next((when for when, line in said if _VERDICT.search(line)), ran.seconds if content else None)
    for name, when in (("first_line_s", useful), ("verdict_s", verdict)):
        answer[name] = None if when is None or first is None else round(when - first, 1)
    if not content:
        answer["lines"] = ran.lines
    for key in ("verdict", "waterfall", "rungs", "remedy", "decoded", "handoff", "warnings", "loader"):
        answer[key] = content.get(key)
    return answer


def shares(answer: dict[str, Any]) -> dict[str, float]:
    """Return the waterfall's shares by group; a piece that covers several stages counts for its own stage."""
    found: dict[str, float] = {}
    for piece in answer.get("waterfall") or []:
        group = next((name for name, words in GROUPS.items() if piece["stage"] in words), "")
        if group:
            found[group] = found.get(group, 0.0) + float(piece["share"])
    return found


def judged(truth: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return whether the verdict agrees with the truth, and the largest distance between their shares."""
    verdict = answer.get("verdict") or {}
    named = str(verdict.get("bottleneck", ""))
    right = set(truth.get("bottlenecks", []))
    if right == {"no loader"}:
        silent = not verdict or named in ("", "no loader", "none", "inconclusive")
        return {"agrees": "did not end" if answer.get("code") is None else "yes" if silent else "no"}
    if not right:
        return {"agrees": "no truth"}
    if not named:
        return {"agrees": "no answer"}
    group = next((name for name, words in GROUPS.items() if named in words), named)
    group = "none" if group == "compute" else group
    right = {next((name for name, words in GROUPS.items() if stage in words), stage) for stage in right}
    # contention names no stage: it is correct whenever the loop starves
    agrees = group in right or (named == "contention" and right - {"none"})
    answer_is = "yes" if agrees else "open" if named == "inconclusive" else "no"
    judgement: dict[str, Any] = {"agrees": answer_is + ("?" if truth.get("unsteady") else "")}
    found = shares(answer)
    if found and truth.get("shares"):
        views = [_grouped(truth["shares"]), _grouped(truth["shares_by_worker"])]
        off = {}
        for name in GROUPS:
            low, high = min(view[name] for view in views), max(view[name] for view in views)
            value = found.get(name, 0.0)
            off[name] = max(low - value, value - high, 0.0)
        judgement["off"] = {name: round(value, 3) for name, value in off.items()}
        judgement["shares_agree"] = max(off.values()) <= TOLERANCE
    return judgement


def _grouped(view: dict[str, float]) -> dict[str, float]:
    return {name: sum(view.get(word, 0.0) for word in words) for name, words in GROUPS.items()}
