"""What ends the script ends it from its other threads too."""

from __future__ import annotations

import threading

import pytest

from pipediag.errors import AnalysisOver
from pipediag.host.exceptions import raised_in_threads


def raised_in_a_thread(error: BaseException) -> None:
    def run() -> None:
        raise error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_ours_ends_the_script_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[AnalysisOver] = []
    over, before = AnalysisOver("settled"), threading.excepthook
    with raised_in_threads(AnalysisOver, ended.append):
        raised_in_a_thread(over)
    assert ended == [over]
    assert threading.excepthook is before
    assert capsys.readouterr().err == ""


def test_another_is_shown_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))
    error = ValueError("the script's own")
    with raised_in_threads(AnalysisOver, lambda over: pytest.fail("it is not ours")):
        raised_in_a_thread(error)
    assert shown == [error]
