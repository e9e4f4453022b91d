"""Map a file beyond its present end, at an address at which large pages can be used, and parts of it to write to."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import weakref
from typing import Any

#: Bytes of a large page.
LARGE = 2 << 20
_PRIVATE = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
_RESERVED = _PRIVATE | mmap.MAP_ANONYMOUS
_FIXED, _NO_ACCESS = 0x10, 0
#: Advice to make large pages of small ones at once: from Linux 6.1 on.
_COLLAPSE = 25
#: Failures in a row after which no large page is asked for: the kernel has none for files.
_ATTEMPTS = 3
#: Maximum number of private views that a process has at a time. Linux allows 65,530 mappings.
_MOST_PRIVATE = 4096


class Mapping:
    """The first bytes of a file, shared with all processes that map it.

    Attributes:
        view: the bytes; the mapping lives as long as a part of it does. Touching what is beyond the file's end kills
            the process.
    """

    def __init__(self, number: int, nbytes: int, *, writable: bool = False) -> None:
        """Raises OSError if there is no room for the addresses."""
        memory = _Memory(nbytes + LARGE, _NO_ACCESS, _RESERVED)
        self._begin = -(-memory.begin // LARGE) * LARGE
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        _mapped(self._begin, nbytes, access, mmap.MAP_SHARED | _FIXED, number, 0)
        view = memory.view(self._begin, nbytes)
        self.view = view if writable else view.toreadonly()
        self._attempts = _ATTEMPTS

    def enlarge(self, begin: int, end: int) -> bool:
        """Put large pages, all 0, where the file has no memory yet. Return whether it has them there now.

        Before the first page, the kernel waits for all processors; so one call for many pages takes less.
        """
        if not self._attempts:
            return False
        for page in range(begin, end, LARGE):
            self.view[page] = 0  # the kernel refuses an empty place
        done: bool = _libc().madvise(self._begin + begin, end - begin, _COLLAPSE) == 0
        self._attempts = _ATTEMPTS if done else self._attempts - 1
        return done


def private(number: int, begin: int, nbytes: int) -> memoryview:
    """Return bytes of a file to write to: the kernel copies a page for this view when it is first written to.

    Raises:
        OSError: the process has many such views already, or no room for the addresses.
    """
    if len(_views) >= _MOST_PRIVATE:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    lead = begin % mmap.PAGESIZE
    memory = _Memory(nbytes + lead, mmap.PROT_READ | mmap.PROT_WRITE, _PRIVATE, number, begin - lead)
    _views.add(memory)
    return memory.view(memory.begin + lead, nbytes)


class _Memory:
    """Addresses that are mapped while this object lives."""

    def __init__(self, nbytes: int, access: int, flags: int, number: int = -1, at: int = 0) -> None:
        self._unmap, self._nbytes = _libc().munmap, nbytes
        self.begin = _mapped(None, nbytes, access, flags, number, at)

    def __del__(self) -> None:
        if "begin" in self.__dict__:
            self._unmap(self.begin, self._nbytes)

    def view(self, begin: int, nbytes: int) -> memoryview:
        """Return a part, which keeps the mapping."""
        array: Any = (ctypes.c_ubyte * nbytes).from_address(begin)
        array.memory = self
        return memoryview(array).cast("B")


#: Private views that are used now.
_views: weakref.WeakSet[_Memory] = weakref.WeakSet()


def _mapped(begin: int | None, nbytes: int, access: int, flags: int, number: int, at: int) -> int:
    found: int = _libc().mmap(begin, nbytes, access, flags, number, at)
    if found == ctypes.c_size_t(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
