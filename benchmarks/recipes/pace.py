"""Measure a recipe's own pace: as it is, under ``pipediag run``, under its plan, and with its batches cached.

Each form is a fresh process of the unmodified script. :func:`count` runs inside it: ``offline/sitecustomize.py`` calls
it once ``torch.optim.optimizer`` is imported.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from . import running
from .catalogue import Place, Recipe
from .probe import VARIABLE as PROBE

VARIABLE = "RECIPES_PACE"
#: The command before the script, for each form. None: the probe's cached batches.
FORMS: dict[str, tuple[str, ...] | None] = {
    "ceiling": None,
    "plain": (),
    "exact": ("-m", "pipediag", "run"),
    "decoded": ("-m", "pipediag", "run", "--approximate"),
    "planned": ("-m", "pipediag", "run", "--plan"),
}


def plan(recipe: Recipe, at: Place) -> Path:
    """Return where the part ``apply`` writes a recipe's plan, for the form ``planned``."""
    return at.work.parent / f"{recipe.name}.plan"


def count(out: str, warm: int, steps: int) -> None:
    """Time ``steps`` optimizer steps after ``warm`` of them, write the result to the file ``out``, and exit."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    times: list[float] = []

    def stepped(*_: Any) -> None:
        import torch

        if len(times) in (warm, warm + steps) and torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        if len(times) == warm + steps + 1:
            seconds = times[-1] - times[warm]
            found = {"rate": steps / seconds, "first": [round(t - times[0], 3) for t in times[:warm]]}
            Path(out).write_text(json.dumps(found))
            os._exit(0)

    register_optimizer_step_post_hook(stepped)


def _hear(said: list[str], when: float, line: str) -> None:
    if line.startswith("pipediag: "):
        said.append(f"{when:.1f} s {line[10:210]}")


def measure(recipe: Recipe, at: Place, forms: list[str], steps: int, limit: float) -> dict[str, Any]:
    """Return steps per second of each form, with the lines that pipediag printed."""
    found: dict[str, Any] = {"workers": at.workers}
    for form in forms:
        running.ready(recipe, at)
        before = FORMS[form]
        if form == "planned" and before is not None:
            before = (*before, str(plan(recipe, at)))
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "pace.json"
            if before is None:
                asked = {"out": str(out), "phases": ["plain", "device"], "seconds": 3.0}
                arguments = [str(Path(__file__).with_name("probe.py")), *running.command(recipe, at)]
                env = running.environment(recipe, at, **{PROBE: json.dumps(asked)})
            else:
                # The queues of the workers begin full.
                asked = {"out": str(out), "warm": 3 * at.workers + 15, "steps": steps}
                arguments = [*before, *running.command(recipe, at)]
                env = running.environment(recipe, at, **{VARIABLE: json.dumps(asked)})
            said: list[str] = []
            ran = running.run(arguments, running.cwd(recipe, at), env, limit, partial(_hear, said))
            result = json.loads(out.read_text()) if out.exists() else {}
        result = result.get("phases", {}).get("device", {}) if before is None else result
        if "rate" in result:
            found[form] = round(result["rate"], 2)
        else:
            found[f"{form}: failed"] = {"code": ran.code, "lines": ran.lines}
        if said:
            found[f"{form}: said"] = said[:12]
    return found
