"""The script's exceptions: shown as Python shows them, from any thread, and for a worker that died with its cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from pipediag.errors import AnalysisOver
from pipediag.host.exceptions import cause_of, dropped_by_python, raised_in_threads

RAISES = """
def fail():
    raise LookupError("the planted error")

try:
    fail()
except LookupError as error:
    raise ValueError("from it") from error
"""
HOOKS = {
    "own": "sys.excepthook = lambda kind, error, tb: print(kind.__name__, tb.tb_frame.f_code.co_name, file=sys.stderr)",
    "none": "sys.excepthook = None",
    "missing": "del sys.excepthook",
    "fails": "def hook(kind, error, tb):\n    error.no_such_attribute\nsys.excepthook = hook",
    "exits": "sys.excepthook = lambda kind, error, tb: sys.exit(7)",
}


@pytest.mark.parametrize("hook", HOOKS)
def test_as_python_shows_it(tmp_path: Path, hook: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\n{HOOKS[hook]}\n{RAISES}")
    plain, ours = (
        subprocess.run([sys.executable, *words, str(script)], capture_output=True, text=True, timeout=60)
        for words in ((), ("-m", "pipediag", "run"))
    )
    assert (ours.returncode, ours.stderr) == (plain.returncode, plain.stderr)
    assert plain.returncode


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


class Freed:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


def test_ours_comes_again_where_python_drops_it(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[AnalysisOver] = []
    again, over, before = threading.Event(), AnalysisOver("interrupted"), sys.unraisablehook

    def end(error: AnalysisOver) -> None:
        ended.append(error)
        again.set()

    with dropped_by_python(AnalysisOver, end):
        Freed(over)
        assert again.wait(10)
    assert ended == [over] and sys.unraisablehook is before
    assert capsys.readouterr().err == ""


def test_another_that_python_drops_is_shown_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: shown.append(dropped.exc_value))
    error = ValueError("the script's own")
    with dropped_by_python(AnalysisOver, lambda over: pytest.fail("it is not ours")):
        Freed(error)
    assert shown == [error]


class Reading:
    """Stands in for torch's iterator, which reads what its workers send."""

    def __init__(self, *ends: Callable[[], Any]) -> None:
        self._workers = [get_context("fork").Process(target=end, daemon=True) for end in ends]
        for worker in self._workers:
            worker.start()

    def _try_get_data(self) -> None:
        raise EOFError


def raised(reading: Callable[[], None]) -> BaseException:
    with pytest.raises(BaseException) as error:
        reading()
    return error.value


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os._exit(5), "exited unexpectedly with exit code 5"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "is killed by signal: Killed."),
    ],
)
def test_a_worker_that_died_meanwhile(end: Callable[[], Any], words: str) -> None:
    reading = Reading(lambda: None, end)
    cause = cause_of(raised(reading._try_get_data))
    assert str(cause) == f"DataLoader worker (pid {reading._workers[1].pid}) {words}"


def test_workers_that_live_or_ended_in_order_are_not_to_blame() -> None:
    reading = Reading(lambda: None, signal.pause)
    error = raised(reading._try_get_data)
    assert cause_of(error) is error
    reading._workers[1].kill()


def test_an_error_elsewhere_is_its_own_cause() -> None:
    reading = Reading(lambda: os._exit(5))

    def processes() -> None:
        assert reading._workers
        raise LookupError("the dataset's own")

    error = raised(processes)
    assert cause_of(error) is error


def test_torchs_words_say_it_already() -> None:
    cause = RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed.")
    error = RuntimeError("DataLoader worker (pid(s) 3) exited unexpectedly")
    assert cause_of(error) is error
    error.__cause__ = cause
    assert cause_of(error) is cause
