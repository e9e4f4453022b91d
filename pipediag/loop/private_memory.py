"""Give this process a copy of its own of the memory that it shares with others: what it writes there stays unseen.

A trial runs the user's code in a process of its own. That code may count in a ``multiprocessing.Value``, or write into
shared tensors and mapped files, which the training must not see.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..usercode.attributes import attribute
from .reachable import reachable

_MAPPINGS, _OPEN_FILES = "/proc/self/maps", "/proc/self/fd"
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw.s ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)")
#: Semaphores stay shared: another process may hold one now, and would free only its own. Devices cannot be copied.
_STAYS = re.compile(r"/dev/shm/(sem\.|[A-Za-z0-9]{6} )|/dev/(?!shm/|zero )|anon_inode:")
#: Most bytes to copy of a mapping whose file cannot be found; any other is copied only where it is written.
_MOST = 1 << 30
_FIXED = 0x10  # MAP_FIXED of Linux, which Python's mmap does not have


class _Mapping(NamedTuple):
    begin: int
    length: int
    offset: int
    file: tuple[int, int]  # device and inode
    path: str


def page_locked(dataset: Any, collate: Any) -> frozenset[int]:
    """Return the addresses of mappings that CUDA has locked, unless the dataset or its collate function holds such.

    These are batches on their way to the device: a loader of many large batches has gigabytes, and each process would
    take seconds to copy them. Only the process that uses CUDA can tell.
    """
    if not (torch.cuda.is_initialized() and os.path.exists(_MAPPINGS)):
        return frozenset()
    makes = attribute(type(dataset), "__getitem__")
    holds = (one for one in reachable(vars(dataset), makes, collate) if isinstance(one, Tensor))
    if any(one.is_pinned() for one in holds):
        return frozenset()
    return frozenset(mapping.begin for mapping in _shared() if _is_locked(mapping.begin))


def _is_locked(address: int) -> bool:
    byte = torch.frombuffer((ctypes.c_ubyte * 1).from_address(address), dtype=torch.uint8)
    return bool(byte.is_pinned())


def unshare_memory(but: frozenset[int] = frozenset()) -> None:
    """Replace every shared, writable mapping of this process by a private one, on Linux, but not those ``but``."""
    if not os.path.exists(_MAPPINGS):
        return
    files = dict(_open_files())
    for mapping in [one for one in _shared() if one.begin not in but]:
        descriptor = files.get(mapping.file)
        opened = _opened(mapping) if descriptor is None else None
        try:
            _replace(mapping, opened if descriptor is None else descriptor)
        finally:
            if opened is not None:
                os.close(opened)


def _shared() -> Iterator[_Mapping]:
    with open(_MAPPINGS) as lines:
        for line in lines:
            found = _LINE.match(line)
            if found is None or _STAYS.match(found[7]):
                continue
            begin, end, offset, major, minor = (int(number, 16) for number in found.groups()[:5])
            yield _Mapping(begin, end - begin, offset, (os.makedev(major, minor), int(found[6])), found[7])


def _open_files() -> Iterator[tuple[tuple[int, int], int]]:
    for name in os.listdir(_OPEN_FILES):
        try:
            facts = os.fstat(int(name))
        except OSError:  # closed since the listing
            continue
        yield (facts.st_dev, facts.st_ino), int(name)


def _opened(mapping: _Mapping) -> int | None:
    """Return a descriptor of the mapping's file, or None if it cannot be opened any more."""
    try:
        descriptor = os.open(mapping.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    facts = os.fstat(descriptor)
    if (facts.st_dev, facts.st_ino) == mapping.file:
        return descriptor
    os.close(descriptor)
    return None


def _replace(mapping: _Mapping, descriptor: int | None) -> None:
    """Put private memory in the mapping's place: of its file, or with a copy of what it holds."""
    if descriptor is not None and _mapped(mapping, descriptor):
        return
    if mapping.length <= _MOST:
        held = ctypes.string_at(mapping.begin, mapping.length)
        if _mapped(mapping, None):
            ctypes.memmove(mapping.begin, held, mapping.length)


def _mapped(mapping: _Mapping, descriptor: int | None) -> bool:
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | _FIXED | (mmap.MAP_ANONYMOUS if descriptor is None else 0)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    offset, number = (0, -1) if descriptor is None else (mapping.offset, descriptor)
    return bool(call(mapping.begin, mapping.length, access, flags, number, offset) == mapping.begin)
