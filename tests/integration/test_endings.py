"""However a script ends: the analysis ends too, keeps what it has, and passes on what the script said."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from .sandbox import PATIENCE, PIPEDIAG, SCRIPTS, Analysis, Sandbox, said_until

Analyze = Callable[..., Analysis]


@pytest.mark.slow
def test_break_in_an_endless_dataset_takes_several_passes(analyze: Analyze) -> None:
    """Fed from a cache, the 25 steps of a pass take milliseconds: windows have to fit into what the script gives."""
    done = analyze("loops.py", "break_early", budget=16, rungs="device,baseline")
    assert done.passes > 1
    assert max(w["attempt"] for w in done.json["session"]["windows"]) > 1
    assert done.measured == {"device", "baseline"}
    assert done.ms("device") < 10 < 18 < done.ms("baseline")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["swallows_exceptions", "bare_except"])
def test_a_loop_that_catches_everything_is_ended_promptly(analyze: Analyze, form: str) -> None:
    done = analyze("loops.py", form, budget=3, rungs="device,baseline")
    assert done.ended in ("settled", "budget")
    assert done.seconds < 3 + 15
    assert done.measured == {"device", "baseline"}
    assert done.bottleneck == "load"


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["torch's", "own"])
@pytest.mark.parametrize("steps", [10, 6000], ids=["ends", "goes-on"])
def test_a_script_that_makes_its_batches_by_hand_is_told_so(sandbox: Sandbox, steps: int, optimizer: str) -> None:
    """It takes five minutes; nobody waits for that. A second run looks for a loop that draws its batches."""
    script = str(SCRIPTS / "batches_by_hand.py")
    done = sandbox.run(*PIPEDIAG, "analyze", "--budget", "5", script, str(steps), optimizer)
    assert done.code == 1
    assert "makes them in the body of its loop" in done.stderr and "Traceback" not in done.stderr
    assert ("trained" in done.stdout) == (steps == 10)
    assert done.seconds < 2 * (5 + 40)  # it runs twice


@pytest.mark.slow
@pytest.mark.parametrize("steps", [5, 45], ids=["before-any-window", "after-windows"])
def test_the_exit_code_of_sys_exit_is_kept(analyze: Analyze, steps: int) -> None:
    done = analyze("ends_by.py", "exit", "--steps", str(steps), rungs="device,baseline", budget=3, code=3)
    assert "sys.exit" not in done.stderr and not done.others
    if steps == 45:
        assert done.json["script"]["exit_code"] == 3
        assert done.passes == 1, "a script that says it failed is not run again"
        assert not any("failed" in r["why_not"] for r in done.json["rungs"]), "no rung is to blame"


def test_a_crash_shows_the_traceback_that_python_shows(analyze: Analyze, sandbox: Sandbox) -> None:
    native = sandbox.run(sys.executable, str(SCRIPTS / "ends_by.py"), "raise")
    done = analyze("ends_by.py", "raise", code=1, crashes=True)
    assert native.code == 1
    assert done.stderr.splitlines()[-1] == "ValueError: boom at step 5"
    assert done.others == native.others
    assert native.stdout == "" and done.json["verdict"]["level"] == "observed", "what was seen until then is told"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_crash_of_the_dataset_shows_the_users_code_only(analyze: Analyze, workers: int) -> None:
    done = analyze("ends_by.py", "dataset", "--workers", str(workers), code=1, crashes=True)
    assert done.stderr.rstrip().splitlines()[-1] == "LookupError: sample 20 is damaged"
    assert "ends_by.py" in done.stderr
    assert "pipediag/ladder" not in done.stderr, "frames of pipediag in the user's traceback"
    assert done.json["verdict"]["level"] == "observed"


def test_a_script_without_a_loader_fails_with_one_line(analyze: Analyze) -> None:
    done = analyze("no_loader.py", code=1)
    assert done.stdout == 2 * "trained without a loader\n" and done.report is None
    assert not done.others
    begins = ("running the script", "starting", "measuring takes", "running it again")
    assert [line for line in done.said if not any(words in line for words in begins)] == done.said[-1:]
    assert "DataLoader" in done.said[-1]


def test_no_such_script(analyze: Analyze) -> None:
    done = analyze("there_is_none.py", code=2)
    assert len(done.stderr.splitlines()) == 1 and "there_is_none.py" in done.said[0]
    assert done.report is None and done.stdout == ""


@pytest.mark.parametrize("output", ["no/such/folder/x.json", "report.xyz"])
def test_an_output_that_cannot_be_written_is_refused_before_the_run(
    analyze: Analyze, sandbox: Sandbox, output: str
) -> None:
    done = analyze("leaves_a_mark.py", options=("-o", output), code=2)
    assert len(done.stderr.splitlines()) == 1 and output in done.said[0]
    assert not (sandbox.cwd / "ran.txt").exists() and done.report is None


def test_a_script_that_writes_files_is_told_of(analyze: Analyze, sandbox: Sandbox) -> None:
    aside = sandbox.folder / "aside"
    aside.mkdir()
    done = analyze("checkpoints.py", budget=3, rungs="device,baseline", options=("--workdir", str(aside)))
    assert (aside / "checkpoint.pt").exists() and (aside / "train.log").exists()
    assert list(sandbox.cwd.iterdir()) == []
    assert "checkpoint.pt" in done.warned["wrote-files"] and "train.log" in done.warned["wrote-files"]
    assert "checkpoint.pt" in done.stdout and "--workdir" in done.stdout
    assert "pipediag-" not in done.warned["wrote-files"], "our own scratch files are not the script's"
    files = done.report["script"]["wrote"] if done.report else []
    assert sorted(files) == ["checkpoint.pt", "train.log"], "a file without a name has the path of its folder"


def test_what_was_overwritten_is_said_before_the_verdict(sandbox: Sandbox) -> None:
    """As distinct from what was newly made, and where nothing was measured too."""
    script, old = sandbox.folder / "train.py", sandbox.cwd / "model.pt"
    script.write_text(
        "import os\nopen('new.log', 'w').close()\nopen('tmp', 'w').close()\nos.replace('tmp', 'model.pt')\n"
    )
    old.touch()
    os.utime(old, (1e9, 1e9))
    done = sandbox.run(*PIPEDIAG, "analyze", str(script))
    assert done.code == 1
    assert done.said[-1].endswith("; it wrote new.log; it overwrote model.pt, which had been there before")


@pytest.mark.slow
def test_a_script_that_never_ends_is_ended(analyze: Analyze) -> None:
    done = analyze("loops.py", "never_ends", budget=2, rungs="device,baseline")
    assert done.seconds < 2 + 15 + 15
    assert "hung" in done.warned
    assert done.json["session"]["observed"] and done.json["partial"] is True
    assert "PARTIAL" in done.stdout


@pytest.mark.slow
def test_a_killed_script_leaves_its_windows(analyze: Analyze) -> None:
    done = analyze("loops.py", "killed", code=137, budget=6, rungs="device,baseline")
    assert done.json["session"]["windows"] and done.json["partial"] is True
    assert done.json["script"]["exit_code"] == 137
    assert "PARTIAL" in done.stdout


def test_ctrl_c_gives_a_partial_report(sandbox: Sandbox) -> None:
    output = sandbox.folder / "out.md"
    process = sandbox.start(
        *PIPEDIAG, "analyze", "-v", "--budget", "10", "-o", str(output), str(SCRIPTS / "interrupted.py")
    )
    said = said_until(process, "the loop waits ")
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    said += err
    assert process.returncode == 130, said
    assert time.monotonic() - began < 15
    assert "PARTIAL" in out and "PARTIAL" in output.read_text()
    assert "baseline" in out
    assert "Traceback" not in said and "KeyboardInterrupt" not in said, said


@pytest.mark.slow
def test_ctrl_c_before_anything_is_measured(sandbox: Sandbox) -> None:
    process = sandbox.start(*PIPEDIAG, "analyze", "--budget", "60", str(SCRIPTS / "interrupted.py"), "--asleep")
    said = said_until(process, "asleep")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said + err
    assert out == ""
    assert "pipediag/" not in said + err, "frames of pipediag in a traceback"


@pytest.mark.slow
def test_an_analysis_that_is_terminated_takes_its_children_along(sandbox: Sandbox) -> None:
    """As ``timeout`` does it, and continuous integration: the signal goes to pipediag alone. The sandbox then looks."""
    process = sandbox.start(*PIPEDIAG, "analyze", "--budget", "60", str(SCRIPTS / "interrupted.py"))
    said_until(process, "the loop waits ")
    process.terminate()
    assert process.wait(timeout=20) in (-signal.SIGTERM, 128 + signal.SIGTERM)
