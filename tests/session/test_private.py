"""Secrets never reach a report; on request, nothing that names the user does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipediag.analysis import diagnose_session
from pipediag.report import OF_A_DIAGNOSIS, RENDERERS
from pipediag.session import Rung, Session
from pipediag.session.private import MASK, masked, redacted, without_heads, without_values
from pipediag.session.worker import HotLine

from ..conftest import Main
from ..report.test_reports import SESSIONS


@pytest.mark.parametrize(
    "argv",
    [
        ["--api-token", "X1"],
        ["--api-token=X1"],
        ["--apiKey", "X1"],
        ["--hf_token", "X1"],
        ["--wandb.api_key=X1"],
        ["trainer.password=X1"],
        ["DB_PASSWORD=X1"],
        ["-password", "X1"],
        ["--secret", "X1", "--epochs", "3"],
        ["--aws-secret-access-key", "X1"],
        ["--url", "https://me:X1@host/data"],
        ["--header", "Authorization: Bearer X1"],
        ["--name", "hf_X1aaaaaaaaaaaaaaaaaaaa"],
        ["--use-auth", "--token", "X1"],
    ],
)
def test_secrets_are_masked(argv: list[str]) -> None:
    found = masked(["train.py", *argv])
    assert "X1" not in " ".join(found) and MASK in " ".join(found)
    assert len(found) == len(argv) + 1 and found[0] == "train.py"


@pytest.mark.parametrize(
    "argv",
    [
        ["--tokens", "1000"],
        ["--token-dim", "64"],
        ["--max-tokens=512"],
        ["--tokenizer", "bert"],
        ["--author", "me"],
        ["--key", "x"],
        ["--monkey=3"],
        ["--passes", "3"],
        ["--data", "/home/me/secret/set"],
        ["--token", "--epochs", "3"],
        ["https://host/data"],
    ],
)
def test_other_values_are_not(argv: list[str]) -> None:
    assert masked(argv) == argv


def test_a_command_line_without_values() -> None:
    argv = ["src/train.py", "--data", "/home/me/x", "--lr=0.1", "-3", "me"]
    assert without_values(argv) == ["train.py", "--data", MASK, f"--lr={MASK}", MASK, MASK]
    assert without_values(["-m", "pkg.train", "x"]) == ["-m", "pkg.train", MASK]
    assert without_values([]) == []


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/me/project/data.py:12", "data.py:12"),
        ("src/me/data.py:12 (load)", "data.py:12 (load)"),
        ("~/data/set", "set"),
        ("'../me/a.py'", "'a.py'"),
        ("18.3 steps/s, and/or 3.5/4.2", "18.3 steps/s, and/or 3.5/4.2"),
        ("I/O", "I/O"),
    ],
)
def test_heads_of_paths(text: str, left: str) -> None:
    assert without_heads(text) == left


def private(session: Session) -> Session:
    """A session that holds a private word wherever a real one may."""
    script = replace(session.script, argv=["/home/PRIVATE/train.py", "--name", "PRIVATE"], wrote=["/home/PRIVATE/x.pt"])
    session = replace(session, script=script, environment={**session.environment, "cache": "/home/PRIVATE/.cache/x"})
    for number, rank in enumerate(session.ranks):
        rank.host = f"PRIVATE{number}"
    if session.inside is not None:
        session.inside.lines.append(HotLine("PRIVATE/data.py:3", "PRIVATE = key()", 0.4, "PRIVATE", "f", "load"))
    rung = "without:/home/PRIVATE/data.py:3"
    session.rungs[rung] = Rung(rung, False, "/home/PRIVATE/data.py changes what it is given")
    session.warn("x", "could not read /home/PRIVATE/data/a.jpg")
    return session


@pytest.mark.parametrize("name", list(SESSIONS))
def test_a_redacted_session_names_nobody(name: str) -> None:
    session = redacted(private(SESSIONS[name]()))
    for ending, render in RENDERERS.items():
        if ending not in OF_A_DIAGNOSIS:
            text = render(diagnose_session(session))
            assert b"PRIVATE" not in (text if isinstance(text, bytes) else text.encode()), ending
    assert redacted(session).to_dict() == session.to_dict()


def test_the_figures_stay() -> None:
    session = SESSIONS["report"]()
    before, after = diagnose_session(session), diagnose_session(redacted(session))
    assert before.verdict.bottleneck == after.verdict.bottleneck
    assert [stage.ms for stage in before.waterfall] == [stage.ms for stage in after.waterfall]


def test_the_option(main: Main, tmp_path: Path) -> None:
    saved, shared = tmp_path / "saved.json", tmp_path / "shared.json"
    saved.write_text(json.dumps(diagnose_session(private(SESSIONS["report"]())).to_dict()))
    assert main("report", "--redact", "-o", str(shared), str(saved))[0] == 0
    assert "PRIVATE" in saved.read_text() and "PRIVATE" not in shared.read_text()
    assert shared.stat().st_mode & 0o777 == 0o600
