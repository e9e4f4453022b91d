"""``analyze --apply``: the transforms of an unmodified script are moved, and whether that pays is measured."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pipediag.analysis.trials.remedy import FEWEST

from .sandbox import SCRIPTS, Analysis, Sandbox, line_of, some_slow

pytest.importorskip("torchvision")

Results = dict[str, Future[Analysis]]

SCRIPT = "remediable.py"
MOVED = ["RandomHorizontalFlip", "ToDtype", "dim"]
#: 4 ms a sample in the workers, or 4 ms a batch where all of it is done at once: nothing can hide that.
CASES: dict[str, list[str]] = {
    "workers": [],
    "in-process": ["--workers", "0", "--ms", "2"],
    "short-epochs": ["--batches", "6"],
    "persistent": ["--batches", "20", "--persistent"],
    "leaves-early": ["--leave-after", "30"],
    "numpy": ["--chain", "numpy"],
    "host-memory": ["--wants", "host-memory"],
    "neutral": ["--chain", "quick", "--step-ms", "12"],
}
PAYING = ["workers", "in-process", "short-epochs", "persistent", "leaves-early"]
SLOW = ["short-epochs", "leaves-early", "persistent", "in-process"]


@pytest.fixture(scope="module")
def results(side_by_side: Callable[..., Future[Analysis]], slow_too: bool) -> Results:
    options = ("--apply", "--apply-budget", "12", "--plan", "plan.json")
    return {
        name: side_by_side(
            SCRIPT, *arguments, budget=2, rungs="baseline", options=options, crashes=name == "host-memory"
        )
        for name, arguments in CASES.items()
        if slow_too or name not in SLOW
    }


def remedy(done: Analysis) -> dict[str, Any]:
    found = done.json["remedy"]
    assert isinstance(found, dict), done.stderr
    return found


@pytest.mark.parametrize("case", some_slow(PAYING, SLOW))
def test_what_pays_is_kept(results: Results, case: str) -> None:
    done = results[case].result()
    told = remedy(done)
    assert [place["name"] for place in told["moved"]] == MOVED
    assert told["applied"] and told["reverted"] is None and told["why_not"] is None, told
    assert told["measured_speedup"]["low"] > 1.5
    assert told["certificate"]["passed"] and told["certificate"]["draws_equal"]
    assert {one["largest"] for one in told["certificate"]["apart"]} == {0.0}
    assert told["device"] == "cpu" and told["memory_bytes"] is None
    assert "it pays: " in done.stdout and "+import pipediag" in done.stdout
    assert not done.others


def test_the_rung_stands_beside_the_ladder(results: Results) -> None:
    done = results["workers"].result()
    assert done.rung("remedied")["windows"] >= FEWEST
    assert done.ms("remedied") < 25 < done.ms("baseline")
    rounds = {w["round"] for w in done.json["session"]["windows"] if w["rung"] == "remedied"}
    plain = {w["round"]: w for w in done.json["session"]["windows"] if w["rung"] == "baseline"}
    assert len(rounds & plain.keys()) >= FEWEST, "each has a baseline of its own round"
    assert {piece["rung"] for piece in done.json["waterfall"]} <= {"baseline", ""}
    order = [w["rung"] for w in done.json["session"]["windows"] if w["round"] in rounds]
    firsts = {order[at] for at in range(0, len(order) - 1, 2)}
    assert firsts == {"baseline", "remedied"}, "neither always comes first"


def test_places_are_those_of_the_script(results: Results) -> None:
    told = remedy(results["workers"].result())
    assert told["moved"][2]["where"].endswith(f"{SCRIPT}:{line_of(SCRIPT, 'def dim')}")


@pytest.mark.slow
def test_the_printed_change_is_two_lines_and_runs(results: Results, sandbox: Sandbox) -> None:
    diff = remedy(results["workers"].result())["how"]["diff"]
    changed = [line for line in diff.splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["+import pipediag", '+loader = pipediag.offload(loader, "cpu")']
    patched = apply_diff(diff, SCRIPTS / SCRIPT, sandbox.folder)
    arguments = ["--batches", "4", "--epochs", "2", "--losses"]
    ran = sandbox.run(sys.executable, str(patched), *arguments)
    native = sandbox.run(sys.executable, str(SCRIPTS / SCRIPT), *arguments)
    assert (ran.code, native.code) == (0, 0), ran.stderr
    assert ran.stdout == native.stdout and len(ran.stdout.splitlines()) == 8


def apply_diff(diff: str, file: Path, folder: Path) -> Path:
    """A copy of the file in ``folder``, patched as a user would."""
    copy = folder / file.name
    shutil.copy(file, copy)
    subprocess.run(["patch", str(copy)], input=diff, text=True, check=True, capture_output=True)
    return copy


def test_a_plan_is_written_where_it_pays(results: Results) -> None:
    done = results["workers"].result()
    assert f"pipediag run --plan plan.json {SCRIPTS / SCRIPT}" in " ".join(done.stdout.split())
    assert done.json["session"]["remedy"]["plan_file"] == "plan.json"


@pytest.mark.parametrize("case", ["neutral", "numpy", "host-memory"])
def test_no_plan_and_no_change_where_it_does_not(results: Results, case: str) -> None:
    done = results[case].result()
    assert "plan.json was not written" in done.said[-1]
    assert not remedy(done)["applied"]
    assert "import pipediag" not in done.stdout and "pipediag run" not in done.stdout


def test_what_does_not_pay_is_reverted(results: Results) -> None:
    told = remedy(results["neutral"].result())
    assert told["reverted"] and [place["name"] for place in told["moved"]] == MOVED[:2]
    assert told["measured_speedup"]["low"] < 1.02
    assert "reverted: " in results["neutral"].result().stdout


def test_where_nothing_moves_the_reasons_are_told(results: Results) -> None:
    done = results["numpy"].result()
    told = remedy(done)
    assert told["moved"] == [] and "numpy" in told["why_not"]
    assert "remedied" not in done.measured
    assert "nothing was moved: ThroughNumpy" in done.stdout


def test_a_loop_that_needs_the_workers_memory_goes_without(results: Results) -> None:
    done = results["host-memory"].result()
    told = remedy(done)
    assert "this loop wants its batches" in told["reverted"] and "on these batches" in told["reverted"]
    assert done.code == 0 and done.passes == 1
    assert done.json["script"]["exit_code"] == 0


def test_without_apply_there_is_no_remedy(sandbox: Sandbox) -> None:
    done = sandbox.analyze(SCRIPT, budget=2, rungs="baseline")
    assert done.json["remedy"] is None and "remedy" not in done.stdout
    assert json.dumps(done.json).count("remedied") == 0


@pytest.mark.slow
def test_why_no_jpeg_is_decoded(sandbox: Sandbox) -> None:
    options = ("--apply", "--apply-budget", "8", "--approximate")
    done = sandbox.analyze(SCRIPT, budget=2, rungs="baseline", options=options)
    assert done.json["decoded"]["why_not"] == "the device cpu has no JPEG engine"
    assert not done.json["decoded"]["applied"] and done.json["remedy"]["moved"]
    assert "JPEGs are decoded in the workers: the device cpu has no JPEG engine" in " ".join(done.stdout.split())
    assert "pipediag: testing on samples what can move to the device, with JPEGs decoded there too" in done.said


@pytest.mark.parametrize("option", [("--plan", "plan.json"), ("--approximate",)])
def test_a_plan_and_decoding_need_apply(sandbox: Sandbox, option: tuple[str, ...]) -> None:
    done = sandbox.analyze(SCRIPT, options=option, code=2)
    assert "--apply" in done.said[-1]
