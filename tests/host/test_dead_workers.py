"""An error in reading from a dead worker says how the worker died."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import pytest

from pipediag.host.exceptions import cause_of


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
