"""What the arena asks of the system: locks and mappings of a file, free room, and a file that ranks share.

The ranks that ``torchrun`` has started share a file in memory. The first of them makes a file without a name in any
folder (``memfd_create``). The others find it among the open files of the processes that have the same parent, so it
vanishes with the last process that uses it, however that ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import mmap
import os
import shutil
import socket
import threading
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from ..clock import time
from ..measure.machine import limits


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


#: Bytes of a large page.
LARGE = 2 << 20
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
_FIXED, _NO_ACCESS = 0x10, 0
#: Advice to make large pages of small ones at once: from Linux 6.1 on.
_COLLAPSE = 25
#: Failures in a row after which no large page is asked for: the kernel has none for files.
_ATTEMPTS = 3


class Mapping:
    """The first bytes of a file, shared with all processes that map it."""

    def __init__(self, number: int, nbytes: int, *, writable: bool = False) -> None:
        """Raises OSError if there is no room for the addresses."""
        memory = _Memory(number, nbytes, writable)
        array: Any = (ctypes.c_ubyte * nbytes).from_address(memory.begin)
        array.memory = memory
        view = memoryview(array).cast("B")
        #: The bytes; the mapping lives as long as a part of it does. Touching what is beyond the file's end kills the
        #: process.
        self.view = view if writable else view.toreadonly()
        self._begin = memory.begin
        self.attempts = _ATTEMPTS  # to put large pages where there is no memory; 0 if the kernel has none for files

    def enlarge(self, begin: int, end: int) -> bool:
        """Put large pages, all 0, where the file has no memory yet. Return whether it has them there now.

        The kernel waits for all processors before the first page, so one call for many pages takes less.
        """
        if not self.attempts:
            return False
        for page in range(begin, end, LARGE):
            self.view[page] = 0  # the kernel refuses an empty place
        done: bool = _libc().madvise(self._begin + begin, end - begin, _COLLAPSE) == 0
        self.attempts = _ATTEMPTS if done else self.attempts - 1
        return done


class _Memory:
    """A mapping that ends with this object."""

    def __init__(self, number: int, nbytes: int, writable: bool) -> None:
        self._libc, self._nbytes = _libc(), nbytes + LARGE
        self._reserved = self._mapped(None, self._nbytes, _NO_ACCESS, _RESERVED, -1)
        self.begin = -(-self._reserved // LARGE) * LARGE
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        self._mapped(self.begin, nbytes, access, mmap.MAP_SHARED | _FIXED, number)

    def _mapped(self, begin: int | None, nbytes: int, access: int, flags: int, number: int) -> int:
        found: int = self._libc.mmap(begin, nbytes, access, flags, number, 0)
        if found == ctypes.c_size_t(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return found

    def __del__(self) -> None:
        if "_reserved" in self.__dict__:
            self._libc.munmap(self._reserved, self._nbytes)


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


#: Share of a memory or disk that stays free for others, and its maximum in bytes.
_RESERVE, _MOST_RESERVED = 1 / 10, 16 << 30
#: The list of the file systems that the process sees on Linux.
_MOUNTS = Path("/proc/self/mountinfo")


def free_memory() -> int:
    """Return the bytes of memory that may be taken; the machine and each control group keep a reserve."""
    return min(_without_reserve(total, free) for total, free in limits())


def free_disk(folder: Path) -> int:
    """Return the bytes that may be taken of the disk that ``folder`` is on, which may be a disk in memory."""
    usage = shutil.disk_usage(folder)
    free = _without_reserve(usage.total, usage.free)
    return min(free, free_memory()) if in_memory(folder.stat().st_dev, _MOUNTS.read_text()) else free


def in_memory(device: int, mounts: str) -> bool:
    """Return whether a file system is in memory, by its device number and the text of ``/proc/self/mountinfo``."""
    name = f"{os.major(device)}:{os.minor(device)}"
    kinds = {line.split()[2]: line.partition(" - ")[2].split()[0] for line in mounts.splitlines()}
    return kinds.get(name) in ("tmpfs", "ramfs")


def _without_reserve(total: int, free: int) -> int:
    return max(0, free - int(min(total * _RESERVE, _MOST_RESERVED)))


#: Environment variables that torchrun sets in each process of a job.
_SIZE, _JOB = "LOCAL_WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
#: Seconds to wait while another rank looks for the file or makes it, and between two attempts.
_PATIENCE, _PAUSE = 10.0, 0.01


def job_file(key: str, environment: MutableMapping[str, str]) -> str:
    """Return the name of the file that the ranks of this job share for ``key``; "" if there is only one rank."""
    size = environment.get(_SIZE, "")
    if not (size.isdigit() and int(size) > 1):
        return ""
    job = [environment.get(name, "") for name in _JOB]
    return "pipediag-" + hashlib.sha256("\0".join([key, str(os.getppid()), *job]).encode()).hexdigest()


def opened_elsewhere(name: str) -> int | None:
    """Open another rank's file called ``name``, and return its descriptor; None if no rank has it."""
    try:
        ranks = [child.pid for child in psutil.Process(os.getppid()).children()]
    except psutil.Error:
        return None
    for pid in ranks:
        try:
            for file in Path(f"/proc/{pid}/fd").iterdir():
                if os.readlink(file).startswith(f"/memfd:{name}"):
                    return os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # the process or the file has gone, or belongs to another user
            continue
    return None


@contextmanager
def ranks_lock(name: str) -> Iterator[None]:
    """Hold the ranks' lock on the file called ``name``; it is released if the process dies.

    Raises:
        TimeoutError: another rank has held it for too long.
    """
    end = time.monotonic() + _PATIENCE
    with socket.socket(socket.AF_UNIX) as lock:
        while True:
            try:
                lock.bind(f"\0{name}")  # in no folder; only one process can have the name
                break
            except OSError:
                if time.monotonic() > end:
                    raise TimeoutError(f"no answer from the other ranks for {_PATIENCE:.0f} s") from None
                time.sleep(_PAUSE)
        yield
