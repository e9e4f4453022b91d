"""What a loader must have left behind when an epoch is over, however it ended: nothing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds after which something that ought to end has not ended. Nothing here comes near it when all is well.
PATIENCE = 20.0


_stock: list[Any] = []


def take_stock() -> None:
    """What is running now, say after a test that hangs, is not what later tests have left."""
    _stock[:] = _running()


def threads() -> list[Any]:
    """Threads of pipediag's that have been started since."""
    return [one for one in _running() if one not in _stock and isinstance(one, threading.Thread)]


def assert_nothing_left() -> None:
    """No thread of pipediag's and no process is running. What was told to end is given the time to do so."""
    until = time.monotonic() + PATIENCE
    while (left := [one for one in _running() if one not in _stock]) and time.monotonic() < until:
        gc.collect()  # an error that a test has kept holds on to what raised it
        time.sleep(0.01)
    assert left == []


def _running() -> list[Any]:
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("pipediag")]
    return [*ours, *multiprocessing.active_children()]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def within_patience(work: Callable[[], T]) -> T:
    """What ``work`` gives, or raises. What would hang for ever fails instead."""
    ended: list[tuple[bool, Any]] = []

    def run() -> None:
        try:
            ended.append((True, work()))
        except BaseException as error:
            ended.append((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert ended, "it hangs"
    done, result = ended[0]
    if not done:
        raise result
    return result  # type: ignore[no-any-return]
