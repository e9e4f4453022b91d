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
from .kinds import Script

TURNS = 3
BATCHES = 8
#: The largest distance of the turns' shares at which a truth counts as steady.
STEADY = 0.10


def phases(profiled: bool, turns: int = TURNS) -> list[str]:
    """Return the phases in turns: plain, cached batches, plain, ..., and the profile in the middle."""
    named = [[f"plain:{n}" if n > 1 else "plain", f"host:{n}" if n > 1 else "host"] for n in range(1, turns + 1)]
    return [*named[0], *(["profile"] if profiled else []), *(phase for pair in named[1:] for phase in pair)]


def measure(
    script: Script, at: Place, seconds: float, limit: float, profiled: bool = True, turns: int = TURNS
) -> dict[str, Any]:
    """Run the script once under the probe; return its phases and what follows from them.

    ``share`` is 1 - cached / plain, in each turn and its median; ``waits`` is the part of a plain step in ``next()``.
    """
    running.ready(script, at)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probe.json"
        order = phases(profiled, turns)
        asked = json.dumps({"out": str(out), "phases": order, "seconds": seconds, "batches": BATCHES})
        command = [str(Path(__file__).with_name("probe.py")), *porting.command(script, at)]
        ran = running.run(command, running.cwd(script, at), porting.environment(script, at, **{VARIABLE: asked}), limit)
        found = json.loads(out.read_text()) if out.exists() else {"phases": {}}
        sampled = Path(folder) / "profile.txt"
        if sampled.exists():
            found["profile"] = lines.of_profile(sampled.read_text(), at.repository)
    found["took"] = round(ran.seconds, 1)
    if not found.get("complete"):
        found["stopped"] = "time limit" if ran.code is None else f"exit code {ran.code}"
        found["output"] = ran.lines
    found.update(concluded(found["phases"]))
    return found


def concluded(measured: dict[str, Any]) -> dict[str, Any]:
    """Return the share that the input costs, by turns; empty without a whole turn."""
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
    return {
        "share": round(statistics.median(shares), 4),
        "shares": [round(share, 4) for share in shares],
        "waits": round(waited, 4),
        "plain_ms": round(1000 * statistics.median(plain for plain, _ in turns), 2),
        "cached_ms": round(1000 * statistics.median(fed for _, fed in turns), 2),
        "steady": max(shares) - min(shares) <= STEADY,
    }
