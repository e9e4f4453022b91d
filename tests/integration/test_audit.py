"""An audit of unmodified scripts: what is planted fails, what is well passes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .sandbox import PIPEDIAG, SCRIPTS, Ran, Sandbox


def audited(sandbox: Sandbox, *arguments: str, code: int) -> tuple[Ran, dict[str, Any]]:
    """What was said, and the checklist's items by id."""
    ran = sandbox.run(*PIPEDIAG, "audit", "-v", "-o", str(sandbox.report), *arguments)
    assert ran.code == code, f"{ran.stdout}\n{ran.stderr}"
    assert not ran.others
    return ran, {item["id"]: item for item in json.loads(sandbox.report.read_text())["audit"]["items"]}


@pytest.fixture
def planted() -> str:
    return str(SCRIPTS / "planted.py")


@pytest.mark.slow
def test_a_planted_sleep_fails(sandbox: Sandbox, planted: str) -> None:
    summary = sandbox.folder / "audit.md"
    options = ["--budget", "20", "--fail-over", "50", "-o", str(summary)]
    ran, items = audited(sandbox, *options, planted, "--plant", "transform", code=3)
    assert items["starvation"]["status"] == "failed", ran.stdout
    assert items["starvation"]["title"] == "data costs at most 50 % of a step"
    assert items["supply"]["status"] == "failed"
    assert "rewrite" in items["supply"]["recommendations"]
    assert any("not met: data costs at most 50 % of a step" in line for line in ran.said)
    assert "Make augment cheaper" in summary.read_text()
    assert ran.stdout.startswith("THE AUDIT FAILED: ") and "FAILED          data costs" in ran.stdout

    shown = sandbox.run(*PIPEDIAG, "report", "-v", str(sandbox.report))
    assert shown.code == 0 and "bottleneck: transforms (" in shown.stdout, "its JSON is a report as well"


@pytest.mark.slow
def test_a_slow_step_passes(sandbox: Sandbox, planted: str) -> None:
    options = ["--budget", "25", "--fail-over", "20"]
    ran, items = audited(sandbox, *options, planted, "--plant", "none", code=0)
    status = {id: item["status"] for id, item in items.items()}
    assert [status[id] for id in ("starvation", "supply", "startup")] == ["passed"] * 3, ran.stdout
    for id in ("transfer", "syncs", "bytes", "unread"):
        assert status[id] == "does not apply"
        assert items[id]["told"].startswith("training runs on the CPU")
