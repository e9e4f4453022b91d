"""Time a script without pipediag: plain, fed from kept batches, and without its cost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ..recipes import running
from . import native
from .cases import Case
from .native import PLAIN, Asked

_PROGRAM = str(Path(native.__file__).resolve())
FREE = "free"


def measure(
    case: Case, folder: Path, device: str, turns: tuple[str, ...], seconds: float, env: dict[str, str]
) -> list[dict[str, Any]]:
    """Run the script in ``folder`` and return its turns; those called ``free`` are plain turns without its cost.

    Raises:
        RuntimeError: the script has failed or is too slow; the message holds its output.
    """
    free = turns == (FREE,)
    script, out = folder / f"{case.name}{'_free' if free else ''}.py", folder / "native.json"
    script.write_text(case.freed if free else case.source)
    out.unlink(missing_ok=True)
    asked = Asked(str(out), (PLAIN,) if free else turns, seconds, case.whole_epochs, device)
    variables = {**env, native.VARIABLE: json.dumps(dataclasses.asdict(asked))}
    limit = 60 + 8 * seconds * len(turns)
    ran = running.run([_PROGRAM, str(script), *case.arguments(device)], folder, variables, limit)
    found = json.loads(out.read_text()) if out.exists() else []
    if len(found) < len(turns):
        raise RuntimeError(f"{script.name}: {len(found)} of {len(turns)} turns; {' '.join(ran.lines)[-400:]}")
    return [{**turn, "turn": FREE if free else turn["turn"]} for turn in found]
