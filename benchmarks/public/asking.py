"""Ask pipediag about a script: its verdict, the lines on its screen, and its first piece of advice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..recipes import running
from ..recipes.catalogue import Place
from . import porting
from .kinds import Script

#: Seconds beyond twice the budget for start-up, further passes and the report.
_GRACE = 240.0


def ask(script: Script, at: Place, budget: float, options: tuple[str, ...], keep: Path | None) -> dict[str, Any]:
    """Return pipediag's answer; the session is copied to ``keep``, if given."""
    running.ready(script, at)
    env = porting.environment(script, at)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "session.json"
        order = ["-m", "pipediag", "analyze", "--budget", f"{budget:g}", *options, "-o", str(report)]
        ran = running.run([*order, *porting.command(script, at)], running.cwd(script, at), env, 2 * budget + _GRACE)
        answer: dict[str, Any] = {"code": ran.code, "took": round(ran.seconds, 1)}
        if not report.exists():
            return {**answer, "output": ran.lines}
        if keep is not None:
            keep.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(report, keep)
        return {**answer, **said(report)}


def said(session: Path) -> dict[str, Any]:
    """Return what this version of pipediag says about a session, whichever version has measured it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        order = [sys.executable, "-m", "pipediag", "report", str(session), "-o", str(report)]
        screen = subprocess.run(order, capture_output=True, text=True, check=True).stdout.splitlines()
        content = json.loads(report.read_text())
    verdict = content.get("verdict") or {}
    recommendations = content.get("recommendations") or []
    return {
        "verdict": {key: verdict.get(key) for key in ("bottleneck", "level", "certain", "starved", "culprit", "band")},
        "screen": screen,
        "where": where(screen),
        "advice": [_advice(one) for one in recommendations[:3]],
        "warnings": [f"{one['code']}: {one['message']}" for one in content.get("warnings") or []],
    }


def where(screen: list[str]) -> list[str]:
    """Return the lines of the screen below WHERE: they are indented, and the next heading is not."""
    begin = next((number for number, line in enumerate(screen) if line.startswith("WHERE")), None)
    if begin is None:
        return []
    found = []
    for line in screen[begin + 1 :]:
        if not line.startswith(" "):
            break
        found.append(" ".join(part for part in line.split() if not set(part) <= set("█▉▊▋▌▍▎▏")))
    return found


def _advice(one: dict[str, Any]) -> dict[str, Any]:
    gain = one.get("measured_speedup") or one.get("predicted_speedup")
    kind = "measured" if one.get("measured_speedup") else "predicted"
    return {"id": one["id"], "title": one["title"], "how": one.get("how", ""), "gain": gain, "kind": kind}
