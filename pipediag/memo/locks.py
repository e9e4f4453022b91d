"""Locks on an open file, which the kernel releases if the process dies."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def locked(number: int) -> Iterator[None]:
    """Hold the lock of an open file."""
    lock = _opened(number)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # a process forked meanwhile has the opening too
        os.close(lock)


class Lock:
    """The lock of an open file, for frequent use: it keeps an opening of its own in every process that uses it."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._threads = threading.Lock()
        self._opening: int | None = None
        _locks.add(self)

    def __del__(self) -> None:
        self.forget()

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            if self._opening is None:
                self._opening = _opened(self._number)
            fcntl.flock(self._opening, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            if self._opening is not None:
                fcntl.flock(self._opening, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def forget(self) -> None:
        """Close the opening; a fork does so at once with that of its parent, whose lock it would share."""
        opening, self._opening = self._opening, None
        self._threads = threading.Lock()
        if opening is not None:
            os.close(opening)


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_locks):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _opened(number: int) -> int:
    # A new opening: forks and threads would share the lock of one that they share.
    return os.open(f"/proc/self/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
