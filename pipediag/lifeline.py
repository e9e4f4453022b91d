"""Tie forked processes to their parent: end them when it has gone, however that ended, and leave its garbage to it.

A worker can outlive its parent: before it ends by itself, it waits until its results are read, which nobody does.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
import sys
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait

_PR_SET_PDEATHSIG = 1
_THREAD = "pipediag-lifeline"
#: Seconds between checks of the parent's process id. Its sentinel stays open if a sibling that was forked later holds a
#: copy.
_EVERY = 1.0


def end_with(parent: int) -> None:
    """End this process when the process ``parent`` does; its thread that started this one must last as long.

    On Linux the kernel does it, so that the script sees no thread of ours.
    """
    if not prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        end_with_starter(os.getppid())
    try:
        os.kill(parent, 0)
    except ProcessLookupError:  # it ended before the kernel was asked
        _end()


def end_worker_with_parent() -> None:
    """End this worker when its parent process does. The thread that started it may end before.

    Do nothing outside a worker, or if called before.
    """
    if parent_process() is not None and all(thread.name != _THREAD for thread in threading.enumerate()):
        end_with_starter(os.getppid())


def end_with_starter(starter: int) -> None:
    """End this process when its parent ``starter`` does, or now if it already has, whichever thread started it."""
    threading.Thread(target=_end_after, args=(starter,), name=_THREAD, daemon=True).start()


@functools.cache
def keep_garbage_in_forks() -> None:
    """Let processes that are forked from now on leave this process's garbage as it is.

    To free a tensor that several streams have used, the allocator asks the driver for an event. That ends a forked
    process, such as a worker, where CUDA does not work. It happens if an error in the loop left a batch in a cycle of
    references, and the worker's first collection finds it.
    """
    os.register_at_fork(after_in_child=gc.freeze)


def prctl(option: int, value: int) -> bool:
    """Set an option of this process; return whether that worked, which it does on Linux only."""
    try:
        return sys.platform == "linux" and bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _end_after(parent: int) -> None:
    process = parent_process()
    sentinel = [] if process is None else [process.sentinel]
    while os.getppid() == parent and not wait(sentinel, _EVERY):
        pass
    _end()


def _end() -> None:
    # Nothing is left to report to, and an orderly end would wait for a reader.
    os.kill(os.getpid(), signal.SIGKILL)
