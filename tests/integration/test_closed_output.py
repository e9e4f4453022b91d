"""Standard streams that are closed or that nobody reads: the file is written, and the script runs as often as ever."""

from __future__ import annotations

import json
import shlex

import pytest

from .sandbox import PIPEDIAG, SCRIPTS, Sandbox

QUICK = ("--no-knobs", "--rungs", "device,baseline", "--budget", "3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirected", "code"), [("| head -1", 0), (">&- 2>&-", 0), ("2>&1 | head -1", 0), (">/dev/full", 1)]
)
def test_the_analysis_goes_on(sandbox: Sandbox, redirected: str, code: int) -> None:
    output = ["-o", str(sandbox.report), str(SCRIPTS / "prints.py")]
    command = shlex.join([*PIPEDIAG, "analyze", *QUICK, *output])
    ran = sandbox.run("bash", "-c", f"{command} {redirected}; exit ${{PIPESTATUS[0]}}")
    assert ran.code == code, ran.stderr
    assert "Traceback" not in ran.stderr and "Errno" not in ran.stderr
    assert json.loads(sandbox.report.read_text())["verdict"]["bottleneck"] == "load"
    assert (sandbox.cwd / "runs.txt").read_text() == "run\n"
    assert [path.name for path in sandbox.folder.iterdir() if path.name.startswith(".")] == []


def test_json_is_all_of_standard_output(sandbox: Sandbox) -> None:
    ran = sandbox.run(*PIPEDIAG, "analyze", *QUICK, "--json", str(SCRIPTS / "prints.py"))
    assert ran.code == 0 and json.loads(ran.stdout)["verdict"]["bottleneck"] == "load"
    assert "step 1\n" in ran.stderr
