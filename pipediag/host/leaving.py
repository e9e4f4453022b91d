"""End a process that the analysis has stopped in the middle of its training."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from multiprocessing import util

from ..measure.own_rank import in_a_job


def leave(code: int) -> None:
    """End this process if it is a rank of a job: the others wait in their collectives until it has gone.

    Taking down torch and its process group would keep them waiting for seconds.
    """
    if not in_a_job():
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    util._exit_function()  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)
