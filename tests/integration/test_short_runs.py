"""Runs that are short, or whose epochs are, get a verdict too, and the right one.

What is planted is large, so that no noise of a busy machine can turn it: 30 ms a sample starve a loop, 120 to 250 ms
a step do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .sandbox import Analysis, Results, analyses, some_slow

STARVES = ["--sample-ms", "30"]
QUICK = {"rungs": "device,baseline", "budget": 10}
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "epochs-of-four": ([*STARVES, "--batches", "4"], QUICK),
    "epochs-of-four-persistent": ([*STARVES, "--batches", "4", "--persistent"], QUICK),
    "epochs-of-four-rebuilt": ([*STARVES, "--batches", "4", "--rebuilt"], QUICK),
    "ten-steps": ([*STARVES, "--steps", "10"], QUICK),
    "without-workers": ([*STARVES, "--workers", "0"], QUICK),
    "without-workers-ten-steps": ([*STARVES, "--workers", "0", "--steps", "10"], QUICK),
    "validates-inside": ([*STARVES, "--batches", "24", "--validates", "6", "--persistent"], QUICK),
    "accumulates": ([*STARVES, "--batches", "12", "--accumulate", "8", "--persistent"], QUICK),
    "leaves-after-five": ([*STARVES, "--leaves", "5"], QUICK),
    "stream-of-twelve": ([*STARVES, "--stream", "--batches", "6"], QUICK),
    "ten-steps-well-fed": (["--step-ms", "250", "--steps", "10"], {**QUICK, "budget": 8}),
    "slow-steps": (["--step-ms", "1500"], {**QUICK, "budget": 20}),
    "slow-steps-ten": (["--step-ms", "1500", "--steps", "10"], {**QUICK, "budget": 25}),
    "epochs-of-four-well-fed": (["--step-ms", "250", "--batches", "4", "--persistent"], QUICK),
    "without-workers-well-fed": (["--step-ms", "250", "--workers", "0"], QUICK),
    "slow-to-start": (["--init-ms", "500", "--batches", "8", "--step-ms", "20"], QUICK),
    "validation-slow-to-start": (
        ["--validates", "10", "--validation-workers", "1", "--validation-init-ms", "400", "--step-ms", "30"],
        QUICK,
    ),
    "there-at-once": (["--batches", "8", "--step-ms", "500", "--workers", "1"], {**QUICK, "budget": 14}),
}
SLOW = sorted(CASES.keys() - {"epochs-of-four", "there-at-once"})


results = analyses(CASES, SLOW, script="short_runs.py", code=None)


def told(results: Results, case: str) -> Analysis:
    """The analysis, which ended with a verdict and by nothing else."""
    done = results[case]
    assert done.code == 0, f"exit code {done.code}\n{done.stdout}\n{done.stderr}"
    assert not done.others, done.stderr
    return done


@pytest.mark.parametrize(
    "case", some_slow([name for name, (arguments, _) in CASES.items() if STARVES[0] in arguments], SLOW)
)
def test_a_starved_loop(results: Results, case: str) -> None:
    done = told(results, case)
    # Workers that are started for four batches cost about as much as the batches do.
    startup = ["startup"] if case in ("epochs-of-four", "epochs-of-four-rebuilt") else []
    assert done.bottleneck in ("transform", "load", *startup), done.stdout
    assert done.json["verdict"]["starved"]["value"] > 0.5


@pytest.mark.parametrize(
    "case",
    some_slow(
        [
            "ten-steps-well-fed",
            "slow-steps",
            "slow-steps-ten",
            "epochs-of-four-well-fed",
            "without-workers-well-fed",
            "there-at-once",
        ],
        SLOW,
    ),
)
def test_a_loop_that_is_well_fed(results: Results, case: str) -> None:
    done = told(results, case)
    assert done.bottleneck == "none", done.stdout


@pytest.mark.slow
def test_workers_that_are_slow_to_start(results: Results) -> None:
    done = told(results, "slow-to-start")
    assert done.bottleneck == "startup", done.stdout
    startups = done.json["session"]["startups"]
    assert all(0.5 < one["seconds"] < 5.0 for one in startups), startups


@pytest.mark.slow
def test_a_validation_within_the_epoch_that_is_slow_to_start(results: Results) -> None:
    """Every tenth step of 30 ms waits 400 ms and more for it."""
    done = told(results, "validation-slow-to-start")
    assert done.bottleneck == "startup", done.stdout
    (cost,) = done.json["amortised"]
    assert cost["stage"] == "other loaders" and "short_runs.py" in cost["culprit"]["where"]
    assert cost["ms"]["low"] > 35 and cost["ms"]["value"] < 120, cost
    assert 30 < done.ms("baseline") < 60, "no step includes it"
    assert [one["id"] for one in done.json["recommendations"]][:1] == ["other-loaders"]


@pytest.mark.parametrize("case", some_slow(["there-at-once", "slow-steps"], SLOW))
def test_start_up_is_no_step_of_the_loop(results: Results, case: str) -> None:
    done = told(results, case)
    assert all(one["seconds"] < 0.5 for one in done.json["session"]["startups"])


def test_every_level_of_evidence_is_said(results: Results) -> None:
    levels = {case: told(results, case).json["verdict"]["level"] for case in results}
    assert {*levels.values()} <= {"observed", "intervened", "proven"}, levels


def test_windows_go_on_over_epochs(results: Results) -> None:
    epochs = {"epochs-of-four", "epochs-of-four-persistent", "epochs-of-four-rebuilt", "leaves-after-five"}
    for case in epochs & results.keys():
        done = told(results, case)
        assert done.measured == {"device", "baseline"}, done.stdout
        assert 40 < done.ms("baseline") < 120, "some 60 ms, two workers side by side, and no start-up"


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_collate_function_that_writes_into_its_samples(analyze: Callable[..., Analysis], workers: str) -> None:
    """The script checks every label it gets, under every rung."""
    done = analyze("collate_writes.py", "--workers", workers, budget=12)
    assert {"sample", "raw", "warm", "baseline"} <= done.measured, done.stdout
    assert not done.others
