"""Commands that measure nothing import nothing heavy, and answer at once."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from pipediag.analysis import diagnose_session
from pipediag.report import RENDERERS
from pipediag.session import RUNGS, Rung, Session, Window

from .sandbox import PIPEDIAG, Sandbox

HEAVY = re.compile(r"^import time:.*\|\s*(torch|torchvision|numpy|scipy)(\.|$)", re.MULTILINE)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small session as ``-o`` writes it."""
    session = Session(tool_version="0", rungs={name: Rung(name) for name in RUNGS})
    for round_ in range(3):
        for number, name in enumerate(RUNGS):
            session.windows.append(Window(name, round_, 10, 0.1 * (number + 1) + 0.001 * round_))
    path = tmp_path / "saved.json"
    path.write_text(RENDERERS[".json"](diagnose_session(session)))
    return path


@pytest.mark.parametrize("command", ["import", "--help", "analyze --help", "report", "refusal"])
def test_nothing_heavy_is_imported(sandbox: Sandbox, saved: Path, command: str) -> None:
    arguments = {
        "import": ["-c", "import pipediag; pipediag.stage"],
        "report": ["-m", "pipediag", "report", "-v", str(saved)],
        "refusal": ["-m", "pipediag", "analyze", "no_such_script.py"],
    }.get(command, ["-m", "pipediag", *command.split()])
    ran = sandbox.run(sys.executable, "-X", "importtime", *arguments)
    assert ran.code == (2 if command == "refusal" else 0), ran.stderr
    assert "| pipediag" in ran.stderr, "the list of imports is there"
    assert not HEAVY.search(ran.stderr)
    assert command != "report" or "bottleneck: " in ran.stdout


def test_help_is_quick(sandbox: Sandbox) -> None:
    """The best of several runs: a busy machine may be slow at times, slow code is so always."""
    taken = []
    for _ in range(5):
        began = time.monotonic()
        assert sandbox.run(*PIPEDIAG, "--help").code == 0
        taken.append(time.monotonic() - began)
    assert min(taken) < 0.3


@pytest.mark.parametrize(
    "text",
    ["not json at all", "[]", "{}", '{"session": {}}', '{"session": {"script": 7}}', None],
    ids=["text", "list", "empty", "no-windows", "wrong-types", "missing"],
)
def test_a_corrupt_session_is_refused_in_one_line(sandbox: Sandbox, text: str | None) -> None:
    path = sandbox.folder / "corrupt.json"
    if text is not None:
        path.write_text(text)
    ran = sandbox.run(*PIPEDIAG, "report", str(path))
    assert ran.code == 2 and ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1 and ran.said and "corrupt.json" in ran.said[0]


@pytest.mark.parametrize("damage", ["steps", "rung", "truncated"])
def test_a_damaged_session_is_refused_in_one_line(sandbox: Sandbox, saved: Path, damage: str) -> None:
    data = json.loads(saved.read_text())
    if damage == "steps":
        data["session"]["windows"][0]["steps"] = 0
    elif damage == "rung":
        data["session"]["windows"][0]["seconds"] = "soon"
    text = json.dumps(data)
    saved.write_text(text[: len(text) // 2] if damage == "truncated" else text)
    ran = sandbox.run(*PIPEDIAG, "report", str(saved))
    assert ran.code == 2 and ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1 and "saved.json" in ran.said[0]
