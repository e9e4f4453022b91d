"""A script under analysis finds everything as if Python alone had started it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .sandbox import SCRIPTS, Analysis, Sandbox

Analyze = Callable[..., Analysis]
QUICK = "device,baseline"


@pytest.mark.parametrize(
    ("command", "cwd"),
    [
        (["tells_itself.py", "--epochs", "3", "a b"], SCRIPTS),
        pytest.param(["-m", "trainer.train", "--budget", "7"], SCRIPTS / "package", marks=pytest.mark.slow),
    ],
    ids=["file", "module"],
)
def test_prints_the_same_lines_natively_and_under_analysis(
    analyze: Analyze, sandbox: Sandbox, command: list[str], cwd: Path
) -> None:
    module = command[0] == "-m"
    if module:
        done = analyze(*command[1:], options=["-m"], cwd=cwd, rungs=QUICK, budget=2)
    else:
        done = analyze(*command, cwd=cwd, rungs=QUICK, budget=2)
    lines = done.stdout.splitlines()
    answers = ("DATA COSTS", "YOUR TRAINING", "WORKERS", "IT IS OPEN", "TOO LITTLE")
    printed = lines[: next(i for i, line in enumerate(lines) if line.startswith(answers))]
    steps = [line for line in printed if "step" in line]
    assert len(steps) > 10

    native = sandbox.start(sys.executable, *command, cwd=cwd)
    assert native.stdout is not None
    expected = [native.stdout.readline().rstrip("\n") for _ in printed]
    native.kill()
    assert printed == expected
    facts = dict(line.split(" ", 1) for line in printed[:5])
    assert facts["cwd"] == str(cwd)
    assert facts["path"] == str(cwd if module else SCRIPTS)
    assert facts["name"].startswith("__main__")
    assert done.json["script"]["argv"] == command
    assert done.json["loader"]["dataset"] == ("SiblingData" if module else "Data")
    assert done.json["loader"]["where"].startswith("trainer/train.py:" if module else "tells_itself.py:")


def test_no_such_module(analyze: Analyze) -> None:
    done = analyze("no.such.module", options=["-m"], code=2)
    assert "no.such.module" in done.said[-1] and not done.others


@pytest.mark.slow
def test_the_scripts_neighbours_win_over_modules_of_ours(analyze: Analyze) -> None:
    """The script's folder is first on the path: its ``utils``, its ``errors``, and a torchvision that is not there."""
    done = analyze("neighbours/train.py", rungs="device,raw,baseline", budget=3)
    assert done.json["loader"]["dataset"] == "Words"
    assert done.measured == {"device", "raw", "baseline"}


@pytest.mark.slow
def test_main_is_a_real_module_and_its_options_are_its_own(analyze: Analyze, sandbox: Sandbox) -> None:
    theirs = ["-o", "x", "--epochs", "3", "--budget", "0.5", "--", "--help", "-m"]
    done = analyze("main_module.py", *theirs, rungs=QUICK, budget=2)
    assert done.stdout.startswith("got x 3 0.5 ['--help', '-m']\nthe main module is real\n")
    assert done.json["script"]["argv"][1:] == theirs
    assert not (sandbox.cwd / "x").exists()


def test_help_after_the_script_is_the_scripts(analyze: Analyze) -> None:
    done = analyze("main_module.py", "--help", code=None)
    assert "An honest training script." in done.stdout and "--epochs" in done.stdout
    assert "Put pipediag's options" not in done.stdout
    assert done.code == 1, "no batch was seen: that is no analysis"


def test_a_usage_error_of_the_scripts_own_keeps_its_exit_code(analyze: Analyze) -> None:
    done = analyze("main_module.py", "-o", "x", code=2)
    assert done.others[-1].startswith("main_module.py: error:") and "--epochs" in done.others[-1]
    assert done.stdout == "" and done.report is None
