"""The hand-off alone: tried where moving transforms does not apply, kept if it pays, and carried out by ``run``."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from pipediag.analysis.trials.remedy import HAND_OFF

from .sandbox import PIPEDIAG, SCRIPTS, Analysis, Results, Sandbox, analyses

pytest.importorskip("torchvision")
pytestmark = pytest.mark.slow

SCRIPT = "handed_over.py"
CASES: dict[str, list[str]] = {
    "nothing-moves": [],
    "reverted": ["--chain", "slow"],
    "stream": ["--stream", "--batches", "200"],
    "ends-early": ["--batches", "200", "--epochs", "1"],
    "slower": ["--ms", "0", "--packed-ms", "3"],
    "host-memory": ["--wants", "host-memory"],
    "refused": ["--refuse", "its batches hold no tensors"],
}


results = analyses(
    {name: (arguments, {"crashes": name == "host-memory"}) for name, arguments in CASES.items()},
    script=SCRIPT,
    budget=2,
    rungs="baseline",
    options=("--apply", "--apply-budget", "12", "--plan", "plan.json"),
)


def handoff(done: Analysis) -> dict[str, Any]:
    found = done.json["handoff"]
    assert isinstance(found, dict), done.stderr
    return found


@pytest.mark.parametrize("case", ["nothing-moves", "reverted", "stream", "ends-early"])
def test_what_pays_is_kept(results: Results, case: str) -> None:
    done = results[case]
    told, before = handoff(done), done.json["remedy"]
    assert told["applied"] and told["measured_speedup"]["low"] > 1.5, told
    assert not before["applied"] and bool(before["reverted"]) == (case == "reverted")
    assert '+loader = pipediag.offload(loader, "cpu", transforms=False)' in told["how"]["diff"]
    shown = " ".join(done.stdout.split())
    assert HAND_OFF in shown and "it pays: " in shown and "pipediag run --plan plan.json" in shown
    held = json.loads((done.cwd / "plan.json").read_text())
    assert held["moved"] == [] and held["speedup"]["low"] > 1.5
    assert not done.others and (done.passes > 1) == (case == "ends-early")


def test_its_rounds_have_baselines_of_their_own(results: Results) -> None:
    windows = results["reverted"].json["session"]["windows"]
    rounds = {rung: {w["round"] for w in windows if w["rung"] == rung} for rung in ("baseline", "remedied", "hand-off")}
    assert rounds["remedied"] and rounds["hand-off"] <= rounds["baseline"]
    assert max(rounds["remedied"]) < min(rounds["hand-off"])


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("slower", ""),
        ("host-memory", "this loop wants its batches"),
        ("refused", "its batches hold no tensors"),
    ],
)
def test_what_does_not_apply_is_told(results: Results, case: str, why: str) -> None:
    done = results[case]
    told = handoff(done)
    assert not told["applied"] and why in (told["why_not"] or told["reverted"])
    assert (told["why_not"] is None) == (case != "refused")
    assert done.code == 0 and done.json["script"]["exit_code"] == 0
    assert "plan.json was not written" in done.said[-1] and not (done.cwd / "plan.json").exists()
    assert "import pipediag" not in done.stdout and "pipediag run" not in done.stdout


@pytest.mark.parametrize("case", ["nothing-moves", "stream"])
def test_run_carries_the_plan_out(results: Results, sandbox: Sandbox, case: str) -> None:
    streams = ["--stream"] * (case == "stream")
    arguments = [str(SCRIPTS / SCRIPT), "--batches", "4", "--epochs", "2", "--losses", *streams]
    plan = ["--plan", str(results[case].cwd / "plan.json")]
    native = sandbox.run(sys.executable, *arguments)
    ran = sandbox.run(*PIPEDIAG, "run", *plan, *arguments)
    assert (native.code, ran.code) == (0, 0), ran.stderr
    assert ran.stdout == native.stdout and len(ran.stdout.splitlines()) == 8
    assert len(ran.said) == 1 and HAND_OFF in ran.said[0] and not ran.others
    refused = sandbox.run(*PIPEDIAG, "run", *plan, *arguments, "--refuse", "its batches hold no tensors")
    assert refused.code == 2 and "this loader cannot: its batches hold no tensors" in refused.said[-1]
    assert refused.stdout == ""
