"""Measure a script's truth without pipediag: its step plainly and with cached batches in turns, and a profile."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from ..recipes import running
from ..recipes.catalogue import Place
from ..recipes.probe import VARIABLE
from . import lines, porting
from .kinds import Edit, Script

TURNS = 3
BATCHES = 8
#: The largest distance of the turns' shares at which a truth counts as steady.
STEADY = 0.10


def phases(profiled: bool, turns: int = TURNS) -> list[str]:
    """Return the phases in turns: plain, cached batches, plain, ..., with the profile after the first turn."""
    named = [[f"plain:{n}" if n > 1 else "plain", f"host:{n}" if n > 1 else "host"] for n in range(1, turns + 1)]
    return [*named[0], *(["profile"] if profiled else []), *(phase for pair in named[1:] for phase in pair)]


def run(
    script: Script, at: Place, order: list[str], seconds: float, limit: float, edit: Edit | None = None
) -> dict[str, Any]:
    """Run the script under the probe through these phases; return what it found, with its last output if it failed."""
    running.ready(script, at)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probe.json"
        asked = json.dumps({"out": str(out), "phases": order, "seconds": seconds, "batches": BATCHES})
        command = [str(Path(__file__).with_name("probe.py")), *porting.command(script, at, edit)]
        env = porting.environment(
            script, at, **{VARIABLE: asked, porting.LOADER: json.dumps(dict(edit.loader) if edit else {})}
        )
        ran = running.run(command, running.cwd(script, at), env, limit)
        found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"phases": {}}
        sampled = Path(folder) / "profile.txt"
        if sampled.exists():
            found["profile"] = lines.of_profile(sampled.read_text(), at.repository)
    found["took"] = round(ran.seconds, 1)
    for name, more in found.pop("more", {}).items():
        if name in found["phases"]:
            found["phases"][name].update(more)
    if not found.get("complete"):
        found["stopped"] = "time limit" if ran.code is None else f"exit code {ran.code}"
        found["output"] = ran.lines
    return found


def measure(
    script: Script, at: Place, seconds: float, limit: float, profiled: bool = True, turns: int = TURNS
) -> dict[str, Any]:
    """Return the truth: the phases of one run, and what :func:`concluded` says of them."""
    found = run(script, at, phases(profiled, turns), seconds, limit)
    return {**found, **concluded(found)}


def concluded(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the input costs, by turns; empty without a whole turn.

    ``share`` is 1 - cached / plain, as the turns' median, and ``shares`` each turn's; ``waits`` is the part of a plain
    step in ``next()``; ``startup`` the part of an epoch until its first batch; ``foreign`` the most cores that other
    programs used in a phase.
    """
    measured = {name: entry for name, entry in found.get("phases", {}).items() if name != "profile"}
    steps = {name: 1.0 / entry["rate"] for name, entry in measured.items()}
    turns = [
        (steps[name], steps[fed])
        for name in steps
        if name.startswith("plain") and (fed := name.replace("plain", "host")) in steps
    ]
    if not turns:
        return {}
    shares = [1.0 - fed / plain for plain, fed in turns]
    plains = [entry for name, entry in measured.items() if name.startswith("plain")]
    waited = sum(entry["waited"] for entry in plains) / sum(entry["seconds"] for entry in plains)
    plain = statistics.median(own for own, _ in turns)
    begun = [took for key, took in found.get("startups", []) if key == found.get("loader")]
    first = statistics.mean(begun) if begun else 0.0
    length = found.get("length") or 0
    return {
        "share": round(statistics.median(shares), 4),
        "shares": [round(share, 4) for share in shares],
        "waits": round(waited, 4),
        "plain_ms": round(1000 * plain, 2),
        "cached_ms": round(1000 * statistics.median(fed for _, fed in turns), 2),
        "startup": round(first / (first + plain * length), 4) if length and first else 0.0,
        "steady": max(shares) - min(shares) <= STEADY,
        "foreign": max(entry.get("foreign", 0.0) for entry in measured.values()),
    }
