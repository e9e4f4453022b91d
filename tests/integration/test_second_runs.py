"""A script is run again where one run is too short: what the first run gave is kept when the second one is refused.

And where nothing could be measured at all, the one line that says so says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .sandbox import Analysis, Results, Sandbox, analyses, line_of, some_slow

SHORT = {"rungs": "device,baseline", "budget": 6}
#: A first run of two seconds that leaves enough of the budget for a second one, on a machine that stalls, too.
FIRST = {**SHORT, "budget": 12, "options": ("--no-knobs",), "crashes": True}
#: How the second run is refused, and what is said of it.
REFUSED = {
    "makedirs": "FileExistsError: [Errno 17] File exists: 'runs/exp'",
    "makedirs-last": "FileExistsError: [Errno 17] File exists: 'final'",
    "input": "EOFError: EOF when reading a line",
    "exit": "it ended with exit code 3",
    "words": "the experiment is there already",
    "kill": "it was killed by SIGKILL, as the kernel does if memory runs out",
}
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    **{how: (["runs_once.py", how, "--steps", "120"], FIRST) for how in [*REFUSED, "done"]},
    "too-short": (["runs_once.py", "makedirs", "--predicts", "--steps", "4"], {**SHORT, "crashes": True, "code": 1}),
    "two-steps": (["ends_by.py", "end", "--steps", "2"], {**SHORT, "code": 1}),
    "few-steps": (["ends_by.py", "end", "--steps", "5"], {**SHORT, "code": None}),
    "slow-steps": (["short_runs.py", "--step-ms", "3000"], {"rungs": "device,baseline", "budget": 2, "code": 1}),
    "trains-forked": (["hogwild.py"], SHORT),
    "trains-spawned": (["hogwild.py", "--spawn"], SHORT),
    "logs": (["hogwild.py", "--log"], {"rungs": "device,baseline", "budget": 10}),
    "silent": (["ends_by.py", "exit", "--steps", "1"], {**SHORT, "code": 3}),
}
SLOW = ["makedirs", "makedirs-last", "input", "words", "trains-forked", "kill", "few-steps", "slow-steps", "logs"]


results = analyses(CASES, SLOW)


@pytest.mark.parametrize("how", some_slow(REFUSED, SLOW))
def test_what_the_first_run_gave_is_reported(results: Results, how: str) -> None:
    done = results[how]
    assert done.measured and done.passes == 2
    gave = "passes 1, 2" if how == "makedirs-last" else "pass 1"
    assert done.warned["later-pass-failed"] == (
        f"your script failed in its 2nd run: {REFUSED[how]} ({gave} gave the reported results)"
    )
    assert done.json["script"]["exit_code"] == 0
    assert all(rung["available"] for rung in done.json["rungs"] if rung["name"] in ("device", "baseline"))
    assert "failed in its 2nd run" in done.stdout


def test_a_second_run_that_finds_its_work_done(results: Results) -> None:
    done = results["done"]
    assert done.measured and done.passes == 2 and not done.others
    assert "drew no batch in its 2nd run" in done.warned["later-pass-failed"]


def test_a_refused_run_after_one_that_was_too_short(results: Results) -> None:
    done = results["too-short"]
    assert "failed in its 2nd run: FileExistsError" in done.said[-1]
    assert "1st run was too short" in done.said[-1] and done.report is None


def test_two_steps_are_too_few_and_more_time_is_no_help(results: Results) -> None:
    done = results["two-steps"]
    assert "after 2 optimizer step(s), too few" in done.said[-1] and "--budget" not in done.said[-1]
    assert sum("running the script" in line for line in done.said) == 1


@pytest.mark.slow
def test_a_short_script_is_not_run_over_and_over(results: Results) -> None:
    """It is run again once, to fit windows into what it gives; whatever the first run gave, that is enough."""
    done = results["few-steps"]
    assert sum("running the script" in line for line in done.said) <= 2
    assert not any("--budget" in line for line in done.said)


@pytest.mark.slow
def test_a_budget_that_is_too_short_is_said_to_be(results: Results) -> None:
    done = results["slow-steps"]
    assert done.said[-1].startswith("pipediag: the budget of 2 s ended your script")
    assert "longer --budget" in done.said[-1]


@pytest.mark.parametrize("case", some_slow(["trains-forked", "trains-spawned"], SLOW))
def test_the_loader_of_a_process_that_trains_is_measured_and_not_its_parents(results: Results, case: str) -> None:
    done = results[case]
    assert done.json["loader"]["where"].endswith(f"hogwild.py:{line_of('hogwild.py', 'in DataLoader(torch.zeros')}")
    assert done.json["session"]["observed"] and not done.others


@pytest.mark.slow
def test_processes_that_do_not_train_leave_a_loop_without_optimizer_to_be_measured(results: Results) -> None:
    done = results["logs"]
    assert done.measured == {"device", "baseline"} and not done.others


def test_a_script_that_fails_silently_is_told_of(results: Results) -> None:
    done = results["silent"]
    assert done.said[-1].startswith("pipediag: your script failed in its 1st run: it ended with exit code 3")


def test_a_refused_run_is_run_again_in_a_folder_of_its_own(analyze: Callable[..., Analysis], sandbox: Sandbox) -> None:
    """Under ``--workdir``, with all that lay there before the first run."""
    aside = sandbox.folder / "aside"
    aside.mkdir()
    (aside / "words.txt").write_text("some words")
    done = analyze(
        "runs_once.py", "makedirs", "--reads", "words.txt",
        rungs="device,baseline", budget=8, options=("--workdir", str(aside)), crashes=True,
    )  # fmt: skip
    session = done.json["session"]
    attempts = {seen["attempt"] for seen in session["windows"] + session["observed"]}
    assert {1, 3} <= attempts and 2 not in attempts
    assert done.measured == {"device", "baseline"}
    folders = sorted(aside.glob("pass-*"))
    assert len(folders) == done.passes - 2 and all((folder / "runs" / "exp").is_dir() for folder in folders)
    assert (folders[0] / "trained").exists() and (folders[0] / "words.txt").is_file()
    (warning,) = [w for w in done.json["warnings"] if w["code"] == "later-pass-failed"]
    assert str(folders[0]) in warning["help"]
