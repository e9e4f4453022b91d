"""The hand-off alone on a GPU, in loops whose prefetcher reads the batches on a stream of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .test_apply_on_gpu import losses, python

pytest.importorskip("torchvision")

SCRIPT = Path(__file__).with_name("prefetched.py")


@pytest.fixture(scope="module", params=["apex", "timm"])
def how(request: pytest.FixtureRequest) -> str:
    if request.param == "timm":
        pytest.importorskip("timm")
    return str(request.param)


@pytest.fixture(scope="module")
def folder(how: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(how)


@pytest.fixture(scope="module")
def told(how: str, folder: Path) -> dict[str, Any]:
    """The JSON report."""
    report = folder / "report.json"
    options = ["--budget", "20", "--apply", "--apply-budget", "30", "--plan", folder / "plan.json", "-o", report]
    done = python("-m", "pipediag", "analyze", "-v", *options, SCRIPT, "--how", how)
    assert done.returncode == 0 and report.exists(), done.stderr
    assert "labels say" not in done.stderr
    return dict(json.loads(report.read_text()))


def test_it_pays_where_nothing_moves(told: dict[str, Any], how: str, folder: Path) -> None:
    """Batches of 19 MB in new shared memory, copied from pageable memory, and a model that takes no time."""
    assert told["remedy"]["why_not"] and not told["remedy"]["moved"]
    handoff = told["handoff"]
    assert handoff["applied"] and handoff["device"] == "cuda:0" and handoff["rounds"] >= 2, handoff
    assert bool(handoff["how"]["diff"]) == (how == "apex"), "timm's loader is in no variable of the script"
    assert json.loads((folder / "plan.json").read_text())["moved"] == []


def test_run_trains_as_natively(told: dict[str, Any], how: str, folder: Path) -> None:
    plan = folder / "plan.json"
    if not plan.exists():
        pytest.skip("the hand-off did not pay here")
    arguments = [SCRIPT, "--how", how, "--steps", "60"]
    done = python("-m", "pipediag", "run", "--plan", plan, *arguments)
    assert "hand-off: batches through re-used page-locked memory" in done.stderr, done.stderr
    ours, theirs = losses(done), losses(python(*arguments))
    assert len(ours) == 60 and ours == pytest.approx(theirs, rel=2e-3)
