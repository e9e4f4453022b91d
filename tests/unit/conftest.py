"""Fixtures of the pure tests. Nothing here, and nothing these tests import, may load torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from pipediag.host.passes import Request
from pipediag.session import Session

settings.register_profile("pipediag", derandomize=True, deadline=None)
settings.load_profile("pipediag")

Main = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def nothing_left_installed() -> Iterator[None]:
    """Every hook has its undoing: a test that leaves an import hook or the marker's recorder behind fails."""
    from pipediag import marker

    finders = list(sys.meta_path)
    yield
    assert sys.meta_path == finders
    assert marker.recorder is None


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Run the command line in this process: exit code, standard output, standard error."""
    from pipediag.cli import main as entry

    def run(*argv: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pipediag", *map(str, argv)])
        with pytest.raises(SystemExit) as leaving:
            entry()
        shown = capsys.readouterr()
        code = leaving.value.code
        assert isinstance(code, int)
        return code, shown.out, shown.err

    return run


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """An empty script."""
    file = tmp_path / "train.py"
    file.touch()
    return file


@pytest.fixture
def analyzed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Session], list[Request]]:
    """Let the measurement return a given session at once; the requests that came are collected."""
    requests: list[Request] = []

    def prepare(session: Session) -> list[Request]:
        def analyze_script(request: Request, progress: Any) -> Session:
            requests.append(request)
            return session

        monkeypatch.setattr("pipediag.host.passes.analyze_script", analyze_script)
        return requests

    return prepare
