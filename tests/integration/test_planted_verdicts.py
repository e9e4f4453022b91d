"""A cost planted in one place of a plain script is found in that place."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pipediag.analysis.words import shown

from .sandbox import PIPEDIAG, Analysis, Sandbox, line_of, slow

Analyze = Callable[..., Analysis]
GATE = ("--fail-over", "10")
LADDER = "device,sample,raw,warm,baseline"


@pytest.mark.parametrize(
    ("plant", "culprit", "line"),
    [
        ("transform", "augment", "def augment"),
        *slow(("load", "time.sleep", "time.sleep(seconds)"), ("collate", "time.sleep", "time.sleep(seconds)")),
    ],
)
def test_the_planted_stage_is_named(analyze: Analyze, plant: str, culprit: str, line: str) -> None:
    done = analyze("planted.py", "--plant", plant, rungs=LADDER, budget=6, options=GATE, code=3)
    verdict = done.json["verdict"]
    assert verdict["bottleneck"] == plant, done.stdout
    assert verdict["band"] == "severe" and verdict["starved"]["low"] > 0.5
    assert verdict["co_bottlenecks"] == []
    assert verdict["culprit"]["name"] == culprit
    assert verdict["culprit"]["where"].endswith(f"planted.py:{line_of('planted.py', line)}")
    assert f"bottleneck: {shown(plant)} (" in done.stdout and culprit in done.stdout
    pieces = [(p["stage"], p["ms"]["value"]) for p in done.json["waterfall"]]
    assert sum(ms for stage, ms in pieces if stage == plant) > 15, "some 50 ms a batch, in two workers"
    assert sum(ms for _, ms in pieces) == pytest.approx(done.ms("baseline"), abs=0.01)
    assert any("10 %" in line for line in done.said), "the gate says why the exit code is 3"
    assert done.json["script"]["exit_code"] == 0


@pytest.mark.slow
def test_a_slow_step_is_not_starved(analyze: Analyze, sandbox: Sandbox) -> None:
    # A busy machine of two cores hands a batch over some milliseconds late: little beside a quarter of a second.
    slow = ("--plant", "none", "--step", "0.25", "--workers", "1")
    done = analyze("planted.py", *slow, rungs="device,baseline", budget=13, options=GATE)
    assert done.bottleneck == "none", done.stdout
    assert done.json["verdict"]["culprit"] is None
    assert "bottleneck: none (" in done.stdout
    assert not any("10 %" in line for line in done.said)

    twin = sandbox.folder / "twin.json"
    again = sandbox.run(*PIPEDIAG, "report", "-v", str(sandbox.report), "-o", str(twin))
    assert again.code == 0 and again.stderr == ""
    assert json.loads(twin.read_text()) == done.json
    shown = sandbox.run(*PIPEDIAG, "report", "-v", str(sandbox.report))
    assert shown.code == 0 and shown.stdout == done.stdout
