"""End a process of ours when the process that started it is gone, however that went.

A worker can outlive its parent: when it ends by itself, it waits until its results are read, which nobody does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait

_PR_SET_PDEATHSIG = 1
_THREAD = "pipediag-lifeline"
#: Seconds between looks at the parent's number, where its sentinel does not show that it has gone: a sibling that was
#: forked later keeps that open.
_EVERY = 1.0


def end_with(parent: int) -> None:
    """End this process when the process ``parent`` does; its thread that started this one must last as long.

    On Linux the kernel does it, so that the script sees no thread that it has not started.
    """
    if not _asked_of_the_kernel():
        _watch(os.getppid())
    try:
        os.kill(parent, 0)
    except ProcessLookupError:  # it had gone before the kernel was asked
        _end()


def end_worker_with_parent() -> None:
    """End this worker when its parent process does. The thread that started it may end before.

    Do nothing outside a worker, or if it does so already.
    """
    if parent_process() is not None and all(thread.name != _THREAD for thread in threading.enumerate()):
        _watch(os.getppid())


def end_with_starter(starter: int) -> None:
    """End this process when its parent ``starter`` does, whichever of its threads started it, or if it has already."""
    _watch(starter)


def _asked_of_the_kernel() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _watch(parent: int) -> None:
    threading.Thread(target=_end_after, args=(parent,), name=_THREAD, daemon=True).start()


def _end_after(parent: int) -> None:
    process = parent_process()
    sentinel = [] if process is None else [process.sentinel]
    while os.getppid() == parent and not wait(sentinel, _EVERY):
        pass
    _end()


def _end() -> None:
    # Nothing is left to tell anybody, and an orderly end would wait for a reader.
    os.kill(os.getpid(), signal.SIGKILL)
