"""Samples that are loaded once: found by ``analyze --apply``, kept by ``run``, with the plain script's losses."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipediag.memo.keys import SETTLED

from .sandbox import PIPEDIAG, SCRIPTS, Ran, Sandbox

pytest.importorskip("torchvision")

SCRIPT = "loads_slowly.py"
#: 80 ms a batch are loaded in a worker; nothing can hide that.
THREE_EPOCHS = ["--epochs", "3"]


def lines(ran: Ran, word: str) -> list[str]:
    return [line for line in ran.stdout.splitlines() if line.startswith(word)]


def seconds(ran: Ran) -> list[float]:
    return [float(line.split()[2]) for line in lines(ran, "seconds")]


def natively(sandbox: Sandbox, *arguments: str) -> Ran:
    return sandbox.run(sys.executable, str(SCRIPTS / SCRIPT), *arguments)


def run(sandbox: Sandbox, *options: str, arguments: list[str] = THREE_EPOCHS) -> Ran:
    return sandbox.run(*PIPEDIAG, "run", *options, str(SCRIPTS / SCRIPT), *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["2", "0"])
def test_a_plan_keeps_what_pays(sandbox: Sandbox, workers: str) -> None:
    options = ("--apply", "--apply-budget", "16", "--plan", "plan.json")
    done = sandbox.analyze(SCRIPT, "--workers", workers, budget=5, options=options)
    told: dict[str, Any] = done.json["loaded_once"]
    assert told["applied"] and told["measured_speedup"]["low"] > 2, (told, done.stderr)
    assert told["keeping"]["what"] == "kept as @pipediag.pure gives them"
    assert 96 * 256 <= told["keeping"]["nbytes"] < 96 * 8192 < told["keeping"]["free"]
    assert "samples loaded once: it pays: " in done.stdout
    assert "+loader = pipediag.cache(loader)" in "".join(done.stdout.split("    "))
    assert json.loads((sandbox.cwd / "plan.json").read_text())["caches"] is True

    slower = [*THREE_EPOCHS, "--workers", workers, "--ms", "30"]  # an epoch's time includes the start of its workers
    native = natively(sandbox, *slower)
    ran = run(sandbox, "--plan", "plan.json", arguments=slower)
    assert (native.code, ran.code) == (0, 0), ran.stderr
    assert lines(ran, "loss") == lines(native, "loss")
    assert len(lines(ran, "loss")) == 36
    assert max(seconds(ran)[1:]) < 0.5 * min(seconds(native))
    assert "what library calls read and decode for the loader at" in ran.said[0]
    assert "@pipediag.pure: 96 calls made, 192 answered from the cache" in ran.stderr


@pytest.mark.slow
def test_a_file_serves_the_next_run(sandbox: Sandbox) -> None:
    native = natively(sandbox, *THREE_EPOCHS)
    time.sleep(SETTLED)  # the script has just written its files
    first, second = (run(sandbox, "--cache-dir", "kept") for _ in range(2))
    assert lines(first, "loss") == lines(second, "loss") == lines(native, "loss")
    (file,) = (sandbox.cwd / "kept").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert "@pipediag.pure: 96 calls made, " in first.stderr
    assert "@pipediag.pure: 0 calls made, " in second.stderr
    (sandbox.cwd / "vectors" / "05.npy").write_bytes((sandbox.cwd / "vectors" / "06.npy").read_bytes())
    time.sleep(SETTLED)
    edited, again = run(sandbox, "--cache-dir", "kept"), natively(sandbox, *THREE_EPOCHS)
    assert lines(edited, "loss") == lines(again, "loss") != lines(native, "loss")
    assert "@pipediag.pure: 1 calls made, " in edited.stderr


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_named_and_the_script_trains_without(sandbox: Sandbox) -> None:
    (sandbox.cwd / "file").write_text("")
    ran = run(sandbox, "--cache-dir", "file", arguments=["--epochs", "1", "--ms", "0.1"])
    assert ran.code == 0 and len(lines(ran, "loss")) == 12
    assert any("results cannot be kept in" in line and "name a folder" in line for line in ran.said), ran.stderr


def test_a_plan_without_a_cache_takes_no_folder(sandbox: Sandbox, tmp_path: Path) -> None:
    from pipediag.remedy.saved_plan import SavedPlan, versions

    plan = SavedPlan("data.Set", 8, "cuda", (), script=SCRIPT, versions=versions())
    (sandbox.cwd / "plan.json").write_text(json.dumps(plan.to_dict()))
    ran = run(sandbox, "--plan", "plan.json", "--cache-dir", "kept")
    assert ran.code == 2
    assert ran.said == ["pipediag: the plan keeps no samples: leave out --cache-dir"]
