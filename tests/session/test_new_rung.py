"""A rung is one entry in the table: a diagnosis has its stage in order, in the verdict and in every report.

Modules derive their constants from the table when they are imported, so the entry is added to a copy of the package.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pipediag

TESTS = Path(__file__).parents[1]
PROGRAM = """
import json, sys
from pipediag.analysis import diagnose_session
from pipediag.analysis.audit import audit
from pipediag.analysis.compare import compare
from pipediag.report import RENDERERS
from pipediag.session import RUNGS
diagnosis = diagnose_session(make(climbing(new=30.0), noise=0.0))
assert audit(diagnosis).count("failed")
print(json.dumps({
    "order": RUNGS,
    "reports": [RENDERERS[ending](diagnosis) for ending in (".txt", ".md")],
    "data": diagnosis.to_dict(),
    "compared": [one.rung for one in compare(diagnosis, diagnosis).rungs],
    "stages": [one.stage for one in compare(diagnosis, diagnosis).stages],
}))
"""


def with_rung(folder: Path, before: str) -> Any:
    """What ``PROGRAM`` prints in a package that has the rung ``new`` directly before the rung ``before``."""
    package = folder / "pipediag"
    shutil.copytree(Path(pipediag.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    table = package / "session" / "rungs.py"
    entry, text = 'RungKind("new", "added", "doing what is new", "something new"),\n', table.read_text()
    place = text.index("RungKind(", text.rindex("\n", 0, text.index(f'"{before}"')) - len("    RungKind("))
    table.write_text(text[:place] + entry + text[place:])
    begin = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(TESTS.parent)!r}]\n"
    begin += f"from {TESTS.name}.made import climbing, make\n"
    run = subprocess.run(
        [sys.executable, "-c", begin + PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("before", ["worker", "raw", "warm"])
def test_a_new_rung_is_one_entry(before: str, tmp_path: Path) -> None:
    found = with_rung(tmp_path, before)
    assert found["order"].index("new") == found["order"].index(before) - 1
    data = found["data"]
    stages = [piece["stage"] for piece in data["waterfall"]]
    following = {"worker": "ipc", "raw": "transform", "warm": "load"}[before]
    assert stages.index("added") == stages.index(following) - 1
    (piece,) = (piece for piece in data["waterfall"] if piece["stage"] == "added")
    assert piece["ms"]["value"] == pytest.approx(30.0)
    assert piece["without"]["steps_per_s"] > 19
    assert data["verdict"]["bottleneck"] == "added"
    assert "doing what is new costs 30 of 81.2 ms" in data["verdict"]["sentence"]
    assert "new" in found["compared"]
    assert ("added" in found["stages"]) == (before == "worker"), "a stage of the training process is compared by itself"
    for text in found["reports"]:
        assert "bottleneck: added (" in text
        assert "new 12." in text
        assert [line for line in text.splitlines() if line.startswith(("added ", "| added |"))]
