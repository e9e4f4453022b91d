"""``analyze --profile``, and the frozen part of a model, on unmodified scripts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .sandbox import PIPEDIAG, SCRIPTS, Results, Sandbox, analyses

pytestmark = pytest.mark.slow

SCRIPT = "frozen_parts.py"
RUNGS = {"rungs": "device,baseline"}
CASES = {
    "separate": ([], RUNGS),
    "inside": (["--form", "inside"], RUNGS),
    "short-epochs": (["--batches", "30"], RUNGS),
    "trained": (["--form", "trained"], RUNGS),
    "own-profiler": (["--own-profiler", "--form", "trained"], RUNGS),
    "no-device-rung": ([], {"rungs": "baseline"}),
    "ends": (["--batches", "12", "--epochs", "1"], RUNGS),
}
RECORDED = ["separate", "inside", "short-epochs", "trained"]


results = analyses(CASES, script=SCRIPT, budget=2, options=("--profile", "trace.json", "-o", "out.md"))


def evidence(results: Results, case: str, name: str) -> Any:
    return results[case].json["evidence"][name]


@pytest.mark.parametrize("case", RECORDED)
def test_steps_are_recorded(results: Results, case: str) -> None:
    found = evidence(results, case, "profile")
    assert (found["why_not"], found["steps"]) == ("", 5), results[case].stderr
    operators = {one["name"]: one for one in found["operators"]}
    assert operators["convolution_backward"]["calls"] == (2.0 if case == "trained" else 1.0)
    roots = {one["name"].partition(".")[0] for one in found["modules"]}
    assert roots == ({"model"} if case in ("inside", "trained") else {"encoder", "head"})
    assert sum(one["ms"] for one in found["modules"]) <= 1.001 * found["busy_ms"] <= found["step_ms"]
    with open(found["trace"]) as file:
        events = json.load(file)["traceEvents"]
    assert sum(str(event.get("name")).startswith("ProfilerStep#") for event in events) == 5
    assert results[case].json["script"]["wrote"] == []  # the trace is ours


@pytest.mark.parametrize("case, told", [
    ("own-profiler", "uses torch's profiler itself"),
    ("no-device-rung", "it was not measured"),
    ("ends", "the script ended before"),
])  # fmt: skip
def test_why_nothing_is_recorded(results: Results, case: str, told: str) -> None:
    found, done = evidence(results, case, "profile"), results[case]
    assert told in found["why_not"] and found["trace"] == ""
    assert told in " ".join(done.stdout.split())


@pytest.mark.parametrize("case, modules, around", [
    ("separate", ["encoder"], ""),
    ("inside", ["model.0"], "model"),
    ("short-epochs", ["encoder"], ""),
])  # fmt: skip
def test_the_frozen_part_is_found(results: Results, case: str, modules: list[str], around: str) -> None:
    found, done = evidence(results, case, "prefix"), results[case]
    assert found is not None and (found["modules"], found["around"]) == (modules, around), done.stderr
    assert found["ms"] > 0 and found["rest_ms"] > 0
    assert f"{SCRIPT}:" in found["where"]
    assert "frozen-prefix" not in {one["id"] for one in done.json["recommendations"]}
    told = " ".join(done.stdout.split())
    assert f"go into a frozen part that learns nothing: {modules[0]}; it cannot run a batch ahead: training" in told
    assert "training runs on the CPU" in told


@pytest.mark.parametrize("case", ["trained", "own-profiler", "no-device-rung", "ends"])
def test_none_is_looked_for(results: Results, case: str) -> None:
    assert evidence(results, case, "prefix") is None


def test_a_file_that_cannot_be_written_is_told_before_the_script_runs(sandbox: Sandbox) -> None:
    mark = sandbox.folder / "mark"
    options = ["analyze", "--profile", str(sandbox.folder / "gone" / "trace.json")]
    done = sandbox.run(*PIPEDIAG, *options, str(SCRIPTS / SCRIPT), "--mark", str(mark))
    assert done.code == 2
    (line,) = done.said
    assert "--profile" in line and "cannot be written" in line
    assert not mark.exists()


def test_the_file_is_where_the_command_was_given(sandbox: Sandbox) -> None:
    """Not where the script runs."""
    elsewhere = sandbox.folder / "elsewhere"
    elsewhere.mkdir()
    options = ("--profile", "trace.json", "--workdir", str(elsewhere))
    done = sandbox.analyze(SCRIPT, budget=2, rungs="device,baseline", options=options)
    assert done.json["evidence"]["profile"]["trace"] == str(sandbox.cwd / "trace.json")
    assert (sandbox.cwd / "trace.json").stat().st_size > 0
    assert list(elsewhere.iterdir()) == []
