"""Map a file beyond its present end, at an address at which large pages can be used."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any

#: Bytes of a large page.
LARGE = 2 << 20
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
_FIXED, _NO_ACCESS = 0x10, 0
#: Advice to make large pages of small ones at once: from Linux 6.1 on.
_COLLAPSE = 25
#: Failures in a row after which no large page is asked for: the kernel has none for files.
_ATTEMPTS = 3


class Mapping:
    """The first bytes of a file, shared with all processes that map it.

    Attributes:
        view: the bytes; the mapping lives as long as a part of it does. Touching what is beyond the file's end kills
            the process.
        attempts: to put large pages where there is no memory; 0 if the kernel has none for files.
    """

    def __init__(self, number: int, nbytes: int, *, writable: bool = False) -> None:
        """Raises OSError if there is no room for the addresses."""
        memory = _Memory(number, nbytes, writable)
        array: Any = (ctypes.c_ubyte * nbytes).from_address(memory.begin)
        array.memory = memory
        view = memoryview(array).cast("B")
        self.view = view if writable else view.toreadonly()
        self._begin = memory.begin
        self.attempts = _ATTEMPTS

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
