"""Other settings of the loader are tried in the same run, and what they gain is measured rather than predicted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .sandbox import PIPEDIAG, Analysis, Results, Sandbox, analyses, line_of

pytestmark = pytest.mark.slow

SCRIPT = "short_runs.py"
SLEEPS = ["--sample-ms", "25", "--step-ms", "20"]
#: Sleeping takes no core, so that two of them are no limit; a busy machine makes steps longer, not sleeps shorter.
CASES: dict[str, tuple[list[str], list[str]]] = {
    "one worker": (SLEEPS, []),
    "none": ([*SLEEPS, "--workers", "0"], []),
    "ends early": ([*SLEEPS, "--steps", "200"], []),
    "refused": ([*SLEEPS, "--counts-workers"], []),
    "switched off": (SLEEPS, ["--no-knobs"]),
    "not starved": (["--sample-ms", "0.1", "--step-ms", "150"], []),
}


results = analyses(
    {
        name: (["--workers", "1", *arguments], {"options": options, "crashes": name == "refused"})
        for name, (arguments, options) in CASES.items()
    },
    script=SCRIPT,
    budget=60,
    rungs="device,baseline",
)


def settings(done: Analysis) -> dict[str, Any]:
    found = done.json["loader_settings"]
    assert isinstance(found, dict), done.stderr
    return found


def recommended(done: Analysis) -> dict[str, Any]:
    found = {one["id"]: one for one in done.json["recommendations"]}
    assert "num-workers" in found, done.stdout
    return dict(found["num-workers"])


@pytest.mark.parametrize("case", ["one worker", "none", "ends early"])
def test_more_workers_are_found_and_measured(results: Results, case: str) -> None:
    done = results[case]
    told = settings(done)
    assert told["why_not"] is None
    best = next(one for one in told["tried"] if one["rung"] == told["best"])
    assert best["verdict"] == "pays" and best["rounds"] >= 2 and best["startup_s"] > 0
    assert best["measured_speedup"]["low"] > 1.2
    one = recommended(done)
    assert one["measured_speedup"] == best["measured_speedup"]
    workers = best["num_workers"]
    assert workers >= 2 and one["title"].startswith(f"num_workers={workers} instead of ")
    assert one["how"].startswith(f"num_workers={workers}")
    assert one["how"].endswith(f"{SCRIPT}:{line_of(SCRIPT, 'in enumerate(loader, 1)')}")
    assert one["evidence"][0].startswith("measured in ")
    assert " measured" in done.stdout and "other loader settings, measured on the loop:" in done.stdout
    assert not done.others


def test_they_are_rungs_of_the_same_run_beside_a_baseline(results: Results) -> None:
    done = results["one worker"]
    assert done.passes == 1
    windows = done.json["session"]["windows"]
    tried = {w["round"] for w in windows if w["rung"] == settings(done)["best"]}
    assert tried <= {w["round"] for w in windows if w["rung"] == "baseline"}
    ladder = {w["round"] for w in windows if w["rung"] == "device"}
    assert not tried & ladder, "the ladder was climbed first"
    assert {rung["name"] for rung in done.json["rungs"] if rung["windows"]} == {"device", "baseline"}


def test_a_script_that_ends_meanwhile_is_run_again(results: Results) -> None:
    done = results["ends early"]
    attempts = {w["attempt"] for w in done.json["session"]["windows"] if w["rung"] == settings(done)["best"]}
    assert done.passes > 1 and max(attempts) > 1


def test_a_script_that_fails_under_other_settings_has_not_failed(results: Results) -> None:
    done = results["refused"]
    told = settings(done)
    assert told["best"] is None and {one["verdict"] for one in told["tried"]} == {"failed"}, told
    assert all("more workers than there should be" in one["why_not"] for one in told["tried"])
    assert done.code == 0 and done.json["script"]["exit_code"] == 0
    assert done.passes > 1, "what is left to try has its turn"
    one = recommended(done)
    assert one["measured_speedup"] is None and "could not be tried: the script failed" in one["evidence"][-1]


def test_a_saved_session_shows_the_same(results: Results, sandbox: Sandbox) -> None:
    done = results["one worker"]
    saved = sandbox.folder / "saved.json"
    saved.write_text(json.dumps(done.json))
    shown = sandbox.run(*PIPEDIAG, "report", "-v", str(saved))
    assert shown.code == 0 and shown.stdout == done.stdout


def test_switched_off_it_stays_a_prediction(results: Results) -> None:
    done = results["switched off"]
    assert done.json["loader_settings"] is None
    one = recommended(done)
    assert one["measured_speedup"] is None and "predicted, not tried" in one["evidence"]
    assert "settings:" not in json.dumps(done.json)


def test_a_loop_that_does_not_starve_is_left_alone(results: Results) -> None:
    done = results["not starved"]
    assert done.json["loader_settings"] is None, done.stdout
    assert "settings:" not in json.dumps(done.json) and "other loader settings" not in done.stdout
