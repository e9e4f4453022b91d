"""A real script, swept: one table of several runs, and what is left of it when it is interrupted."""

from __future__ import annotations

import json
import signal

import pytest

from .sandbox import PIPEDIAG, SCRIPTS, Sandbox

QUICK = ("--rungs", "device,baseline", "--budget", "2")
PLANTED = str(SCRIPTS / "planted.py")


@pytest.mark.slow
def test_one_row_for_each_value(sandbox: Sandbox) -> None:
    report, table = str(sandbox.report), sandbox.folder / "sweep.md"
    outputs = ["-o", report, "-o", str(table)]
    ran = sandbox.run(
        *PIPEDIAG, "sweep", "-v", "--vary=--plant=load,none,no", *QUICK, *outputs, PLANTED, "--plant", "none"
    )
    assert ran.code == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.said[0].startswith("pipediag: 3 runs of 2 s at most: 6 s")
    swept = json.loads(sandbox.report.read_text())
    load, none, failed = swept["runs"]
    assert [run["setting"] for run in swept["runs"]] == [{"--plant": "load"}, {"--plant": "none"}, {"--plant": "no"}]
    assert load["argv"] == [PLANTED, "--plant", "load"]
    assert load["bottleneck"] == "load" and load["starved"]["value"] > 0.5
    ceiling = load["ceiling"]
    assert ceiling["samples_per_s"]["value"] == pytest.approx(4 * ceiling["steps_per_s"]["value"], abs=1e-4)
    assert none["baseline"]["steps_per_s"]["value"] > 10
    assert (failed["exit_code"], failed["report"]) == (2, None)
    assert "invalid choice: 'no'" in ran.stderr, "what the script says is seen"
    assert ran.stdout.startswith("2 OF 3 RUNS MEASURED")
    assert table.read_text().count("\n| ") == 4

    again = sandbox.folder / "load.json"
    again.write_text(json.dumps(load["report"]))
    shown = sandbox.run(*PIPEDIAG, "report", "-v", str(again))
    assert shown.code == 0 and "bottleneck: loading (" in shown.stdout


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(sandbox: Sandbox) -> None:
    command = ["sweep", "--vary=--workers=0,2,1", "--rungs", "device,baseline", "--budget", "2"]
    process = sandbox.start(*PIPEDIAG, *command, "-o", str(sandbox.report), PLANTED, "--plant", "load")
    assert process.stderr is not None and process.stdout is not None
    for line in process.stderr:
        if line.startswith("pipediag: run 2 of 3"):
            break
    assert len(json.loads(sandbox.report.read_text())["runs"]) == 1, "written as soon as it was known"
    for line in process.stderr:
        if line.endswith("measuring\n"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "--workers=2: interrupted" in err and out.startswith("2 OF 3 RUNS MEASURED: ")
    assert len(json.loads(sandbox.report.read_text())["runs"]) == 2


@pytest.mark.slow
def test_a_script_that_raises_says_what(sandbox: Sandbox) -> None:
    script = str(SCRIPTS / "ends_by.py")
    ran = sandbox.run(*PIPEDIAG, "sweep", "-v", "--vary=--steps=2", *QUICK, "-o", str(sandbox.report), script, "raise")
    assert ran.code == 1
    (run,) = json.loads(sandbox.report.read_text())["runs"]
    assert run["why_not"] == "the script ended with exit code 1: ValueError: boom at step 2"
