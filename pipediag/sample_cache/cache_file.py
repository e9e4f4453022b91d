"""The file behind a store: its header, its lock, and how it is made, opened and handed to other processes.

The file begins with words of 8 bytes: the header, and an index with one word for each sample. Entries follow. The file
is sparse at its full size. It is written with ``pwrite`` only: a write through a mapping kills the process if the disk
is full, and spoils what another machine has written to the same page. Entries are read with ``pread``, which is faster
than the page faults of a mapping.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import numpy as np

from . import ranks

#: First words of the header. A file in which one of them is different is made anew.
_FIXED = struct.Struct("=8s3q32s")  # magic, version, page size, samples, key
_MAGIC, _VERSION = b"pipediag", 2
#: Further words of the header: size of the file, end of the last claim, end of the room that was found free, reason why
#: no more entries are accepted, entries dropped because a file had changed, entries dropped because they were damaged.
SIZE, TAIL, GRANTED, FULL, CHANGED, DAMAGED = range(8, 14)
#: First word of the index. A word of the index holds the place and the size of an entry, both in units of UNIT bytes.
INDEX = 16
UNIT, _SIZE_BITS = 64, 24
#: Maximum bytes of an entry.
LARGEST = UNIT * ((1 << _SIZE_BITS) - 1)
#: Bytes written at a time to clear the front of a file.
_CHUNK = 1 << 20
#: Seconds after which a file that no run has opened is removed.
_UNUSED = 30 * 24 * 3600.0
#: ``struct flock``: kind of the lock, begin and length of the range, process. Unlike the short ``flock`` of
#: :meth:`CacheFile.locked`, such a lock can be held for as long as the file is open.
_USE = struct.Struct("hhqqi4x")
#: Maximum number of parts written in one call; Linux takes 1024.
_MOST_PARTS = 512
#: Attempts to open a file that other runs replace at the same time.
_TRIES = 100


class CacheFile:
    """Open file, closed with its last reference: no thread can write to another file that got the same number.

    Attributes:
        number: file descriptor.
        front: size of header and index.
    """

    def __init__(self, number: int, samples: int) -> None:
        self.number = number
        self.samples = samples
        self.front = up(8 * (INDEX + samples), mmap.PAGESIZE)

    def __del__(self) -> None:
        os.close(self.number)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "number": DupFd(self.number)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.number = state["number"].detach()

    def set(self, word: int, value: int) -> None:
        os.pwrite(self.number, struct.pack("=q", value), 8 * word)

    def write(self, parts: Iterable[bytes | memoryview], offset: int) -> None:
        """Write ``parts`` one after the other. Raises OSError if the disk is full."""
        left = [memoryview(part) for part in parts if len(part)]
        while left:
            written = os.pwritev(self.number, left[:_MOST_PARTS], offset)
            offset += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file's lock, which the kernel releases if the process dies."""
        # A new opening: forks and threads would share the lock of one that they share.
        lock = os.open(f"/proc/self/fd/{self.number}", os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a process forked meanwhile has the opening too
            os.close(lock)

    def used(self) -> CacheFile:
        """Mark the file as used now, and as in use for as long as a process has this opening. Return the file."""
        try:
            os.utime(self.number)
            fcntl.fcntl(self.number, fcntl.F_OFD_SETLK, _USE.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0))
        except OSError:  # a file system without such locks, where none is removed
            pass
        return self

    def is_in_use(self) -> bool:
        """Return whether a process has another opening that :meth:`used` has marked."""
        try:
            fcntl.fcntl(self.number, fcntl.F_OFD_SETLK, _USE.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        except OSError:  # also on a file system without such locks
            return True
        return False

    def format(self, fixed: bytes, nbytes: int) -> None:
        """Make an empty store. The words that mark the header as complete are written last."""
        # Reading a hole of a file in memory takes memory too, and kills the process if there is none.
        self.write([bytes(_CHUNK)] * (self.front // _CHUNK) + [bytes(self.front % _CHUNK)], 0)
        self._grow(self.front + nbytes)
        self.set(TAIL, self.front)
        self.write([fixed], 0)

    def reopen(self, fixed: bytes, nbytes: int, length: int) -> bool:
        """Prepare the file that an earlier run has made, ``length`` bytes long. Return False if it does not fit."""
        head = os.pread(self.number, self.front, 0)
        if len(head) < self.front or not head.startswith(fixed):
            return False
        words = np.frombuffer(head, np.int64)
        size, tail, offsets = int(words[SIZE]), int(words[TAIL]), words[INDEX : INDEX + self.samples]
        if not self.front <= tail <= size <= length:
            return False
        if offsets.any():
            begins, sizes = places(offsets[offsets != 0])
            if begins.min() < self.front or (begins + sizes).max() > tail:
                return False
        if not self.is_in_use():  # free what earlier runs have claimed and not written to
            self.set(TAIL, int((begins + sizes).max()) if offsets.any() else self.front)
        if size < self.front + nbytes:
            self._grow(self.front + nbytes)
        self.write([bytes(8 * (DAMAGED + 1 - GRANTED))], 8 * GRANTED)  # these words held for the earlier run
        return True

    def _grow(self, size: int) -> None:
        os.ftruncate(self.number, size)
        self.set(SIZE, size)


def in_memory(samples: int, nbytes: int, key: str) -> CacheFile:
    """Make a file that exists in memory only, or open the one of another rank of the job. Raises OSError."""
    name = ranks.name_for(key, os.environ)
    if not name:
        return _made("pipediag", _fixed(samples, ""), samples, nbytes)
    fixed = _fixed(samples, name)
    with ranks.alone(name):
        number = ranks.opened(name)
        if number is not None:
            file = CacheFile(number, samples)
            if os.pread(number, len(fixed), 0) == fixed:
                return file
        return _made(name, fixed, samples, nbytes)


def _made(name: str, fixed: bytes, samples: int, nbytes: int) -> CacheFile:
    file = CacheFile(os.memfd_create(name), samples)
    file.format(fixed, nbytes)
    return file


def remove_unused(folder: Path, but: str) -> None:
    """Remove the cache files, except that of the key ``but``, that no run uses now and none has opened for a month."""
    for path in folder.glob("*.cache"):
        try:
            if path == _path(folder, but) or time.time() - path.lstat().st_mtime < _UNUSED:
                continue
            file = CacheFile(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK), 0)
            with file.locked():
                found = os.fstat(file.number)
                ours = _is_private(found) and os.pread(file.number, len(_MAGIC), 0) == _MAGIC
                if ours and _is_at(path, found) and not file.is_in_use():
                    path.unlink()
        except OSError:  # another run has removed it, or it belongs to somebody else
            continue


def in_folder(folder: Path, key: str, samples: int, nbytes: int) -> CacheFile:
    """Open ``<key>.cache``, or replace it by an empty one if it does not fit. Raises OSError."""
    path = _path(folder, key)
    fixed = _fixed(samples, key)
    for _ in range(_TRIES):
        try:
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            path.unlink()  # a symbolic link
            continue
        file = CacheFile(number, samples)
        with file.locked():
            found = os.fstat(number)
            if not _is_at(path, found):  # another run has replaced it meanwhile
                continue
            if _is_private(found):
                if found.st_size == 0:
                    try:
                        file.format(fixed, nbytes)
                    except OSError:  # a full disk
                        path.unlink()
                        raise
                    return file.used()
                if file.reopen(fixed, nbytes, found.st_size):
                    return file.used()
            path.unlink()
    raise PermissionError("its files cannot be made private to their owner")


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}.cache"


def _fixed(samples: int, key: str) -> bytes:
    return _FIXED.pack(_MAGIC, _VERSION, mmap.PAGESIZE, samples, hashlib.sha256(key.encode()).digest())


def _is_at(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.lstat(), found)
    except FileNotFoundError:
        return False


def _is_private(found: os.stat_result) -> bool:
    """True if no other user can have written the file: its entries are unpickled."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def place(offset: int, size: int) -> int:
    """Return the word of the index for an entry of ``size`` bytes at ``offset``, which is a multiple of ``UNIT``."""
    return offset // UNIT << _SIZE_BITS | up(size, UNIT) // UNIT


def places(words: Any) -> tuple[Any, Any]:
    """Return where entries begin and the bytes that they take, for one word of the index or an array of words."""
    return (words >> _SIZE_BITS) * UNIT, (words & (1 << _SIZE_BITS) - 1) * UNIT


def up(size: int, unit: int) -> int:
    """Round ``size`` up to a multiple of ``unit``."""
    return -(-size // unit) * unit
