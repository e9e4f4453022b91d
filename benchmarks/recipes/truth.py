"""Measure the truth about a recipe without pipediag: time its loop with parts of the input removed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from . import running
from .catalogue import Place, Recipe
from .probe import VARIABLE

PHASES = ("plain", "host", "plain:2", "host:2", "sample", "no-load", "plain:3", "host:3", "alone", "device")
#: Starvation below which no stage is correct, and the maximum distance from the largest cost of a correct stage.
STARVED, CLOSE = 0.05, 0.75
#: Maximum change of a truth between repetitions; beyond it the row is marked, as the machine was busy otherwise.
UNSTEADY = 0.15
#: Seconds without a batch after which a script counts as having no loader.
NO_LOADER = 45.0


def measure(recipe: Recipe, at: Place, seconds: float, limit: float) -> dict[str, Any]:
    """Run the script under the probe; return ``{phases, alone, ...}`` and the conclusions."""
    running.ready(recipe, at)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probe.json"
        phases = PHASES if recipe.loader else ("plain",)
        asked = json.dumps({"out": str(out), "phases": phases, "seconds": seconds})
        arguments = [str(Path(__file__).with_name("probe.py")), *running.command(recipe, at)]
        env = running.environment(recipe, at, **{VARIABLE: asked})
        ran = running.run(arguments, running.cwd(recipe, at), env, limit if recipe.loader else min(limit, NO_LOADER))
        found = json.loads(out.read_text()) if out.exists() else {"phases": {}}
    found["took"] = round(ran.seconds, 1)
    if not found.get("complete"):
        found["stopped"] = "time limit" if ran.code is None else f"exit code {ran.code}"
        found["lines"] = ran.lines
    if recipe.loader:
        found.update(concluded(found))
    elif not found.get("drew") and ran.code in (None, 0):
        found["bottlenecks"] = ["no loader"]
    return found


def concluded(found: dict[str, Any]) -> dict[str, Any]:
    """Return the starvation, the shares of a plain step, and the stages that count as correct bottlenecks."""
    steps: dict[str, list[float]] = {}  # seconds per step, for each repetition of a phase
    for name, entry in found.get("phases", {}).items():
        base = name.partition(":")[0]
        steps.setdefault("plain" if base == "again" else base, []).append(1.0 / entry["rate"])
    if "plain" not in steps or "host" not in steps:
        return {}
    each = {name: sum(seconds) / len(seconds) for name, seconds in steps.items()}
    plain = each["plain"]
    host = min(each["host"], plain)
    device = min(each.get("device", host), host)
    pairs = [1.0 - fed / own for own, fed in zip(steps["plain"], steps["host"], strict=False)]
    spread = max(steps["plain"]) / min(steps["plain"]) - 1.0 if len(steps["host"]) == 1 else max(pairs) - min(pairs)
    starved = 1.0 - device / plain
    shares = {"compute": device / plain, "transfer": (host - device) / plain}
    left = max(0.0, plain - host)
    handing = min(left, max(0.0, each["sample"] - host)) if "sample" in each else 0.0
    shares["hand-off"] = handing / plain
    alone = found.get("alone") or {}
    worker: dict[str, float] = {}
    if alone:
        transform = sum(alone["transforms_ms"].values())
        worker = {"load": max(0.0, alone["sample_ms"] - transform), "transform": transform}
        making = sum(worker.values())
        shares.update({name: (left - handing) / plain * part / making for name, part in worker.items()})
        worker["collate"] = alone["collate_ms"]
        whole = sum(worker.values())
        worker = {name: part / whole for name, part in worker.items()}
    # the same by the workers' time alone, which causes all waiting of the loop
    waits = left
    if alone and not found.get("workers"):  # no parallel work: the times add up
        waits = min(plain - (host - device), found["batch"] * (alone["sample_ms"] + alone["collate_ms"]) / 1000)
    direct = (waits + host - device) / plain
    by_worker = {"compute": 1.0 - direct, "transfer": shares["transfer"]}
    by_worker.update({name: waits / plain * part for name, part in worker.items()})
    begun = [took for key, took in found.get("startups", []) if key == found["loader"]]
    startup = 0.0
    if begun and found.get("length"):
        startup = sum(begun) / len(begun) / (sum(begun) / len(begun) + plain * found["length"])
    return {
        "rate": 1.0 / plain,
        "unsteady": spread > UNSTEADY,
        "spread": spread,
        "ceiling": 1.0 / device,
        "starved": starved,
        "shares": shares,
        "shares_by_worker": by_worker,
        "worker": worker,
        "no_load_rate": 1.0 / each["no-load"] if found["phases"].get("no-load", {}).get("used") else None,
        "startup_share": startup,
        "starved_direct": direct,
        "bottlenecks": named((starved, direct), startup, shares, by_worker),
    }


def named(starved: tuple[float, float], startup: float, *views: dict[str, float]) -> list[str]:
    """Return the correct answers: the largest cost of each view, and those close to it."""
    right = []
    if min(starved) < 2 * STARVED:
        right.append("none")
    if max(starved) > STARVED / 2:
        for view in views:
            costs = {stage: share for stage, share in view.items() if stage != "compute" and share > 0}
            greatest = max(costs.values(), default=0.0)
            right += [stage for stage, share in costs.items() if share >= CLOSE * greatest and stage not in right]
    return [*right, "startup"] if startup > STARVED else right
