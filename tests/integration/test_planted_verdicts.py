"""A cost planted in one place of a plain script is found in that place, and what would help there is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

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
    assert again.code == 0 and again.stderr == f"pipediag: wrote {twin}\n"
    assert json.loads(twin.read_text()) == done.json
    shown = sandbox.run(*PIPEDIAG, "report", "-v", str(sandbox.report))
    assert shown.code == 0 and shown.stdout == done.stdout


LEFT_OUT_RUNGS = "device,worker,sample,warm,baseline"


def piece(done: Analysis, stage: str, line: int) -> dict[str, Any]:
    where = f"left_out.py:{line}"
    of_stage = [one for one in done.json["waterfall"] if one["stage"] == stage and one["culprit"]]
    return next(one for one in of_stage if one["culprit"]["where"].endswith(where))


@pytest.mark.parametrize(
    ("form", "stage", "name"),
    [("own", "load", "denoised"), *slow(("library", "load", "np."), ("collate", "collate", "padded"))],
)
def test_the_loop_without_it_is_measured(analyze: Analyze, form: str, stage: str, name: str) -> None:
    """It takes 16 ms of some 20 ms that a batch takes a worker."""
    done = analyze("left_out.py", "--slow", form, rungs=LEFT_OUT_RUNGS, budget=20)
    found = piece(done, stage, line_of("left_out.py", f"# {form}"))
    assert name in found["culprit"]["name"], done.stdout
    assert found["without"]["measured"], done.stdout
    assert found["without"]["steps_per_s"] > 1.3 * 1000 / done.ms("baseline"), done.stdout
    assert done.others == [], "the script runs as it does"


@pytest.mark.slow
def test_what_returns_nothing_is_timed_only(analyze: Analyze) -> None:
    done = analyze("left_out.py", "--slow", "nothing", rungs=LEFT_OUT_RUNGS, budget=20)
    line = line_of("left_out.py", "# nothing")
    assert not piece(done, "load", line)["without"]["measured"]
    assert f"left_out.py:{line}: timed, not proven: sleep returns nothing" in done.stdout.replace("\n    ", " ")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 0])
def test_hue_is_most_of_it(analyze: Analyze, workers: int) -> None:
    done = analyze("stock_transforms.py", "--workers", str(workers), rungs="device,raw,baseline", budget=20)
    tried = {one["key"]: one for one in done.json["session"]["alternatives"]}
    assert {"hue", "tensor"} <= tried.keys(), done.stderr
    assert tried["hue"]["ms_instead"] < 0.7 * tried["hue"]["ms"] and tried["hue"]["difference"] > 0
    advice = {one["id"]: one for one in done.json["recommendations"]}
    assert advice["instead"]["title"].endswith("without hue, other pixels"), done.stdout
    predicted = advice["instead"]["predicted_speedup"]
    assert predicted["value"] > 1.2 and predicted["low"] > 1
    assert done.json["remedy"] is None and "remedied" not in json.dumps(done.json), "nothing is moved unasked"
