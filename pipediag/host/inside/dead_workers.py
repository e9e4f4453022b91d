"""Find the dead DataLoader worker behind an error in reading what the workers send."""

from __future__ import annotations

import signal
import time
import traceback
from typing import Any

#: The method of torch's iterator in which it waits for its workers' batches, and reads them.
_READS = "_try_get_data"
#: Seconds that workers have to end once their connections are closed.
_ENDING = 1.0


def cause_of(error: BaseException) -> BaseException:
    """Return the error that says how a worker died, if one did; otherwise ``error`` itself.

    torch raises another error from that one. If a worker dies while its batch is read, torch raises what the reading
    failed with, such as EOFError; the worker's exit code then says how it died.
    """
    cause = error.__cause__
    if "exited unexpectedly" in str(error):
        return error if cause is None else cause
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == _READS:
            until = time.monotonic() + _ENDING
            for worker in getattr(frame.f_locals.get("self"), "_workers", ()):
                worker.join(max(0.0, until - time.monotonic()))
                if words := _death(worker):
                    return RuntimeError(words)
    return error


def _death(worker: Any) -> str:
    """Return how a worker died, in torch's words; "" if it lives or ended normally."""
    if not worker.exitcode:
        return ""
    if worker.exitcode < 0:
        name = signal.strsignal(-worker.exitcode) or f"signal {-worker.exitcode}"
        return f"DataLoader worker (pid {worker.pid}) is killed by signal: {name}."
    return f"DataLoader worker (pid {worker.pid}) exited unexpectedly with exit code {worker.exitcode}"
