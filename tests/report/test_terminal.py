"""What reaches a terminal or a notebook: a look that suits it, and no control characters."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.report import RENDERERS, screen_for
from pipediag.report.document import Advice, Code, Section
from pipediag.report.progress import NotebookBar, in_notebook
from pipediag.report.terminal import Look, all_printable, fresh_line, look_of, printable, shown_by

from ..made import climbing, make, waits


class Stream(io.StringIO):
    def __init__(self, encoding: str | None = "utf-8", tty: bool = False) -> None:
        super().__init__()
        self._encoding, self._tty = encoding, tty

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._tty

    def fileno(self) -> int:
        return 7


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("entraînement 10 %", "entraînement 10 %"),
        ("a\tb\nc\rd\u2028e", "a b c d e"),
        ("\x1b[31mred\x07\x9b", "\\x1b[31mred\\x07\\x9b"),
        ("a\u202eb\udce9", "a\\u202eb\\udce9"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_code_keeps_its_tabs() -> None:
    code, advice = Code("a\tb", ["\tx\x1b"]), Advice(1, "t", "load", "g", "", ["r\n"], "h", ["\ty"], "")
    (section,) = all_printable([Section("s", [code, advice])])
    first, second = section.blocks
    assert (first, second) == (Code("a b", ["\tx\\x1b"]), Advice(1, "t", "load", "g", "", ["r "], "h", ["\ty"], ""))


@pytest.mark.parametrize("verbosity", [-1, 0, 1])
@pytest.mark.parametrize("tty", [False, True])
def test_names_are_not_obeyed(verbosity: int, tty: bool) -> None:
    session = make(climbing(raw=30.0))
    session.script.argv = ["x\x1b]0;title\x07\nforged.py"]
    session.warn("x", "warned\x1b[2J", "help\x1b[2J")
    diagnosis = diagnose_session(session)
    shown = screen_for(diagnosis, Stream(tty=tty), verbosity)
    for forbidden in ("\x1b]", "\x07", "\x1b[2J", "\nforged"):
        assert forbidden not in shown
        assert forbidden not in str(RENDERERS[".txt"](diagnosis)) + str(RENDERERS[".md"](diagnosis))


@pytest.mark.parametrize(("columns", "width"), [(200, 100), (90, 90), (20, 40), (0, 80)])
def test_width(monkeypatch: pytest.MonkeyPatch, columns: int, width: int) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((columns, 24)))
    assert look_of(Stream(tty=True)) == Look(width, True, True)
    assert look_of(Stream()) == Look(80, False, True)


@pytest.mark.parametrize(
    ("tty", "environment", "colour"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour(monkeypatch: pytest.MonkeyPatch, tty: bool, environment: dict[str, str], colour: bool) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert look_of(Stream(tty=tty)).colour == colour
    assert ("\x1b[" in screen_for(diagnose_session(make(climbing(raw=30.0))), Stream(tty=tty))) == colour


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no-such-encoding"])
def test_no_blocks_where_the_stream_has_none(encoding: str) -> None:
    assert not look_of(Stream(encoding=encoding)).fancy
    assert shown_by("█", Stream(encoding=encoding)) == "\\u2588"
    assert "#" in screen_for(diagnose_session(make(climbing(raw=30.0))), Stream(encoding=encoding))


class Notebook:
    """IPython in a kernel: what a cell displays, and what becomes of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **shell: Any) -> None:
        self.shown: list[dict[str, str]] = []
        kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(**shell))
        kernel.display = SimpleNamespace(display=self.display)
        monkeypatch.setitem(sys.modules, "IPython", kernel)

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Notebook:
        assert raw and display_id
        self.shown.append(data)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        self.shown.append(data)


def test_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    Notebook(monkeypatch)
    assert not in_notebook(), "a terminal with IPython"
    Notebook(monkeypatch, kernel=object())
    assert in_notebook()


def test_it_grows_at_most_once_a_second_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    notebook = Notebook(monkeypatch, kernel=object())
    bar = NotebookBar(make(climbing(raw=30.0), noise=0.0, evidence=waits(31.0)), 60.0)
    assert notebook.shown[0]["text/html"].startswith(
        '<progress value="0.0" max="60.0"></progress> pipediag: waiting for'
    )
    bar("first-batch", {})
    for step in range(100):
        now[0] = 0.25 * step
        bar("progress", {"rung": "worker", "round": 2})
    assert 20 <= len(notebook.shown) <= 26
    assert notebook.shown[-1]["text/html"].startswith('<progress value="24.0" max="60.0"></progress>')
    assert notebook.shown[-1]["text/plain"] == (
        "pipediag: 36 s left at most: round 2, with hand-off; data costs 38 % of a step of 81 ms; "
        "now 12.3, possible 20 steps/s"
    )
    bar.clear()
    assert notebook.shown[-1] == {"text/plain": "", "text/html": ""}


def test_names_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    notebook = Notebook(monkeypatch, kernel=object())
    bar = NotebookBar(make({}), 60.0)
    now[0] = 2.0
    bar("looking", {"at": "<script>x\x1b[0m", "seconds": 1.0})
    assert "recording &lt;script&gt;x\\x1b[0m" in notebook.shown[-1]["text/html"]


def on_terminal(text: str, width: int) -> list[str]:
    """Return the lines of a terminal, which begins a line where a character has no room, and not before."""
    lines, at = [""], 0
    for character in text:
        if character == "\r":
            at = 0
        elif character == "\n":
            lines.append("")
        else:
            if at == width:
                lines.append("")
                at = 0
            lines[-1] = lines[-1][:at].ljust(at) + character + lines[-1][at + 1 :]
            at += 1
        at = 0 if character == "\n" else at
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("unfinished", ["", "1", "epoch 3:  45 %", "x" * 19, "x" * 20])
def test_a_line_of_its_own(unfinished: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda number: SimpleNamespace(columns=20))
    written = f"epoch 2\n{unfinished}{fresh_line(Stream(tty=True))}DATA COSTS\n"
    assert on_terminal(written, 20) == ["epoch 2", *[unfinished] * bool(unfinished), "DATA COSTS", ""]
    assert fresh_line(Stream()) == ""
