"""The bar that a notebook shows while a loop is measured, with a fake clock and a fake IPython."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pipediag.report.progress import NotebookBar, in_notebook

from ..made import climbing, make, waits


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
