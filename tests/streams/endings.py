"""Check that a loader leaves nothing running after an epoch, however it ended."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds after which something that should have ended hangs. Normally everything ends much sooner.
PATIENCE = 20.0

_stock: list[Any] = []


def take_stock() -> None:
    """Note what runs already, perhaps since a test that hangs, so that no later test is blamed for it."""
    _stock[:] = _running()


def threads() -> list[Any]:
    """Return pipediag's threads that have started since."""
    return [one for one in _running() if one not in _stock and isinstance(one, threading.Thread)]


def assert_nothing_left() -> None:
    """Check that neither a thread of pipediag nor a child process runs, after some time to end."""
    until = time.monotonic() + PATIENCE
    while (left := [one for one in _running() if one not in _stock]) and time.monotonic() < until:
        gc.collect()  # an error that a test keeps also keeps what raised it
        time.sleep(0.01)
    assert left == []


def _running() -> list[Any]:
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("pipediag")]
    return [*ours, *multiprocessing.active_children()]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def within_patience(work: Callable[[], T]) -> T:
    """Return or raise what ``work`` does; fail if it hangs."""
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
