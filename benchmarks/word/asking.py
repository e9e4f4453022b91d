"""Get pipediag's answer on a script, as the screen gives it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipediag.analysis import diagnose_session
from pipediag.analysis.amortised import with_amortised
from pipediag.analysis.diagnosis import Diagnosis
from pipediag.analysis.numbers.intervals import Interval
from pipediag.analysis.summary import summarise
from pipediag.session import Session

from ..accuracy.suite import shorten
from ..recipes import running

#: Seconds of an analysis beyond its budget: to start, to import, to end its workers. Beside busy processes all take
#: longer.
PATIENCE = 150.0
_CERTAIN = re.compile(r"(?<!not )\bcertain(ly)?\b")


def ask(script: Path, arguments: list[str], budget: float, env: dict[str, str], keep: Path | None) -> dict[str, Any]:
    """Run ``pipediag analyze`` on a script in its folder, and return the answer.

    ``keep`` is a file for the whole report.
    """
    out = script.parent / "report.json"
    out.unlink(missing_ok=True)
    order = ["-m", "pipediag", "analyze", "--budget", f"{budget:g}", "-o", out.name, script.name, *arguments]
    ran = running.run(order, script.parent, env, 2 * budget + PATIENCE)
    report = json.loads(out.read_text()) if out.exists() else None
    if report is not None and keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        keep.write_bytes(out.read_bytes())
    ended = "took too long" if ran.code is None else f"exit code {ran.code}" if ran.code else ""
    failed = {"error": ended or "no report", "lines": ran.lines} if ended or report is None else {"error": ""}
    return {"seconds": round(ran.seconds, 1), **failed, **(answer(report) if report else {})}


def answer(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a report says: its headline, the share that it claims and whether it is certain of it, the rest.

    The report's session is summed up as for the screen, so that this follows whatever the screen calls certain.
    """
    diagnosis = diagnose_session(Session.from_dict(report["session"]))
    summary = summarise(diagnosis)
    claimed = _claimed(diagnosis)
    headline = ", ".join(filter(None, (summary.headline, summary.figures)))
    return {
        "headline": headline + (f" ({summary.certainty})" if summary.certainty else ""),
        "certain": says_certain(summary.certainty),
        "claimed": claimed and claimed.to_dict(),
        **shorten(report),
    }


def is_certain(report: Mapping[str, Any]) -> bool:
    """Return whether the screen of a report calls its answer certain, or a part of it certainly so."""
    return bool(answer(report)["certain"])


def says_certain(words: str) -> bool:
    """Return whether words beside a headline call it certain, or a part of it certainly so: not "not certain"."""
    return _CERTAIN.search(words) is not None


def _claimed(diagnosis: Diagnosis) -> Interval | None:
    """Return the share of a step that data costs as the screen says it, with what it costs between the steps."""
    verdict = diagnosis.verdict
    if verdict.starved is None:
        return None
    between = [] if verdict.bottleneck in ("none", "inconclusive") else diagnosis.amortised
    return with_amortised(verdict.starved, diagnosis.ladder.ms("baseline").value, between)
