"""Store encoded samples in one file that all processes of a run map.

    store = Store.create(samples=len(dataset), nbytes=limit, folder=None, key="")
    store.put(index, records.encode(value), [FileFacts.of(path)])  # True if it was stored
    entry = store.get(index)  # None if it has none, or if a file it was made from has changed
    value = records.decode(entry.head, entry.buffers, copy=False)

Without a folder the file exists in memory only (``memfd_create``): it has no name, needs no room in /dev/shm, and
vanishes with the last process that uses it, however that ends. With a folder it is ``<key>.cache`` there, readable by
its owner only, and serves later runs.

The file holds a header and the index, one word for each sample, followed by entries. A writer claims room at the end
under a lock on the file, which the kernel releases when a process dies, then writes the entry, and publishes it last,
by storing its offset in the index. So no reader ever sees a part of an entry, and a killed writer loses only the room
that it claimed. Entries never move or change; a replaced one only loses its word.

Readers map the entries privately: what user code writes into them changes only its own process' pages. Such a page no
longer shows what other processes write to it later. So a large entry does not share its pages with another, and a small
one is copied when it is read.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import pickle
import secrets
import stat
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UsageError
from .records import Record
from .room import free_disk, free_memory

#: The words of the header: first those that must fit, then the counts. The index follows.
_FIXED = struct.Struct("=8s3q32s")  # magic, version, page size, samples, key
_SIZE, _TAIL, _GRANTED, _FULL, _CHANGED, _DAMAGED = range(8, 14)
_WORDS = 16
_VERSION = 1

#: Start of an entry: check sum of what follows it, run, index, size, size of the pickled facts behind it.
_ENTRY = struct.Struct("=5q")
_ALIGNED = 64
#: Smaller entries share pages, and are copied when they are read.
_LARGE = 4 * mmap.PAGESIZE
#: Bytes that may be claimed before the free room is looked at again.
_STEP = 64 << 20
#: Values of the word _FULL other than the number of an operating system error.
_LIMIT, _SHORT = -1, -2
#: Attempts to open a file that other runs replace at the same time.
_TRIES = 100
#: Lets a mapping be larger than the memory; Python below 3.13 has no name for it.
_MAP_NORESERVE = 0x4000


class FileFacts(NamedTuple):
    """State of a file before it was read."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileFacts:
        """Look at the file now. Raises OSError if it does not exist."""
        found = os.stat(path)
        return cls(os.path.abspath(path), found.st_size, found.st_mtime_ns)


class Entry(NamedTuple):
    """Stored record. Unless it is small, ``buffers`` view the process' private mapping of the file."""

    head: memoryview
    buffers: list[memoryview]


class Store:
    """Records of a dataset's samples. It may be forked, or sent to workers that are spawned."""

    def __init__(self, file: _File, samples: int, size: int, limit: int, folder: Path | None) -> None:
        self.samples = samples
        self._file: _File | None = file
        self._size = size
        self._limit = limit
        self._folder = folder
        self._run = secrets.randbits(62)
        self._mapping: _Mapping | None = None

    @classmethod
    def create(cls, samples: int, nbytes: int, folder: Path | None, key: str) -> Store:
        """Make a store, or open the one that earlier runs have left in ``folder``.

        Args:
            samples: length of the dataset.
            nbytes: maximum size of the entries together.
            folder: where the store outlives the run; None to keep it in memory.
            key: name of the store in ``folder``. Stores with different content need different keys.

        Raises:
            UsageError: the folder cannot be used, or the platform is not Linux.
        """
        if sys.platform != "linux":
            raise UsageError("samples can be kept on Linux only")
        front = _up(8 * (_WORDS + samples), mmap.PAGESIZE)
        limit = front + _up(nbytes, mmap.PAGESIZE)
        fixed = _FIXED.pack(b"pipediag", _VERSION, mmap.PAGESIZE, samples, hashlib.sha256(key.encode()).digest())
        try:
            if folder is None:
                file = _File(os.memfd_create("pipediag"))
                _format(file.number, fixed, front, limit)
                return cls(file, samples, limit, limit, None)
            folder.mkdir(parents=True, exist_ok=True)
            file, size = _opened(folder / f"{key}.cache", fixed, front, limit)
        except OSError as error:
            raise UsageError(f"samples cannot be kept in {folder or 'memory'}: {error}") from error
        return cls(file, samples, size, limit, folder)

    def get(self, index: int) -> Entry | None:
        """Return a sample's entry, or None if it has none. An entry whose files have changed is dropped."""
        mapping, file = self._mapped(), self._file
        if mapping is None or file is None:
            return None
        offset = mapping.words[self._word(index)]
        if not offset:
            return None
        if offset >= self._size:  # another run has made the file larger
            return None
        found = mapping.read(index, offset, self._run)
        if found is None:
            self._withdraw(mapping, file.number, index, offset, _DAMAGED)
            return None
        files, entry = found
        if any(map(_has_changed, files)):
            self._withdraw(mapping, file.number, index, offset, _CHANGED)
            return None
        return entry

    def put(self, index: int, record: Record, files: Iterable[FileFacts]) -> bool:
        """Store a sample's record, made from ``files``. Return False if it has an entry, or if there is no room."""
        mapping, file = self._mapped(), self._file
        if mapping is None or file is None or mapping.words[_FULL] or mapping.words[self._word(index)]:
            return False
        parts = _laid_out(record, files, self._run, index, checked=self._folder is not None)
        try:
            offset = self._claim(mapping, file.number, index, sum(map(len, parts)))
            if offset is None:
                return False
            _write(file.number, parts, offset)
            with _locked(file.number):
                if mapping.words[self._word(index)]:
                    return False
                mapping.words[self._word(index)] = offset
        except OSError as error:
            mapping.words[_FULL] = error.errno or errno.EIO
            return False
        return True

    def touched(self, index: int) -> bool:
        """Return whether this process has written into the sample's entry, so that ``get`` returns what it wrote."""
        mapping, file = self._mapped(), self._file
        if mapping is None or file is None:
            return False
        begin, end = self._place(mapping, index)
        for at in range(begin, end, 1 << 20):
            own = np.frombuffer(mapping.entries[at : min(at + (1 << 20), end)], np.uint8)
            if not np.array_equal(own, np.frombuffer(os.pread(file.number, len(own), at), np.uint8)):
                return True
        return False

    def forget(self, index: int) -> None:
        """Undo what this process has written into the sample's entry, in the views that it holds as well."""
        mapping = self._mapped()
        if mapping is not None:
            begin, end = self._place(mapping, index)
            if end > begin:
                mapping.data.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    @property
    def used(self) -> int:
        """Bytes that the entries take, including those that were replaced."""
        return self._header(_TAIL) - _up(8 * (_WORDS + self.samples), mmap.PAGESIZE)

    @property
    def entries(self) -> int:
        """Number of samples that have an entry."""
        mapping = self._mapped()
        return 0 if mapping is None else int(np.count_nonzero(np.frombuffer(mapping.words[_WORDS:], np.int64)))

    @property
    def changed(self) -> int:
        """Number of entries dropped because a file had changed."""
        return self._header(_CHANGED)

    @property
    def damaged(self) -> int:
        """Number of entries of earlier runs dropped because their check sum was wrong."""
        return self._header(_DAMAGED)

    @property
    def full(self) -> str | None:
        """Why no further entry is accepted, or None."""
        code = self._header(_FULL)
        if code == _SHORT:
            return f"little {'memory' if self._folder is None else 'room on the disk'} is left"
        return {0: None, _LIMIT: "its limit is reached"}.get(code, os.strerror(code))

    def close(self) -> None:
        """Release the file. The store is empty from now on; views of its entries remain valid."""
        self._file = self._mapping = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self

    def __getstate__(self) -> dict[str, Any]:
        file = self._file and DupFd(self._file.number)
        return {**self.__dict__, "_file": file, "_mapping": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._file is not None:
            self._file = _File(state["_file"].detach())

    def _mapped(self) -> _Mapping | None:
        """Return this process' mapping, or None if the store is closed."""
        if self._file is None:
            return None
        if self._mapping is None or self._mapping.process != os.getpid():
            # A fork's parent may have written into the pages of its mapping.
            self._mapping = _Mapping(self._file.number, self.samples, self._size)
        return self._mapping

    def _word(self, index: int) -> int:
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        return _WORDS + index

    def _header(self, word: int) -> int:
        mapping = self._mapped()
        return 0 if mapping is None else mapping.words[word]

    def _claim(self, mapping: _Mapping, number: int, index: int, size: int) -> int | None:
        """Return the offset of ``size`` bytes that only this call may write to, or None if there are none."""
        words, unit = mapping.words, _unit(size)
        with _locked(number):
            if words[_FULL] or words[self._word(index)]:
                return None
            begin = _up(words[_TAIL], unit)
            end = begin + _up(size, unit)
            if end > self._limit:
                words[_FULL] = _LIMIT
                return None
            if end > words[_GRANTED]:
                room = free_memory() if self._folder is None else free_disk(self._folder)
                spare = room - (end - words[_TAIL])
                if spare < 0:
                    words[_FULL] = _SHORT
                    return None
                words[_GRANTED] = end + min(spare, _STEP)
            words[_TAIL] = end
            return begin

    def _withdraw(self, mapping: _Mapping, number: int, index: int, offset: int, count: int) -> None:
        """Drop the entry at ``offset``, and count it once, however many processes find it outdated."""
        with _locked(number):
            if mapping.words[self._word(index)] == offset:
                mapping.words[self._word(index)] = 0
                mapping.words[count] += 1
        mapping.verified[index] = False

    def _place(self, mapping: _Mapping, index: int) -> tuple[int, int]:
        """Return where the pages of a sample's entry begin and end; (0, 0) if it has none of its own."""
        offset = mapping.words[self._word(index)]
        if not offset or offset + _ENTRY.size > self._size:
            return 0, 0
        size = _ENTRY.unpack_from(mapping.entries, offset)[3]
        return (offset, min(offset + size, self._size)) if size >= _LARGE else (0, 0)


class _File:
    """File descriptor, closed with the last reference, so that no thread uses its number for another file."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class _Mapping:
    """One process' view of the file.

    Attributes:
        words: header and index, shared with the other processes.
        entries: the whole file, copied on write.
        verified: whether the check sum of a sample's entry, made by another run, was right.
    """

    def __init__(self, number: int, samples: int, size: int) -> None:
        self.process = os.getpid()
        front = 8 * (_WORDS + samples)
        self.words = memoryview(mmap.mmap(number, front, mmap.MAP_SHARED)).cast("q")
        self.data = mmap.mmap(number, size, mmap.MAP_PRIVATE | _MAP_NORESERVE)
        self.entries = memoryview(self.data)
        self.verified = bytearray(samples)

    def read(self, index: int, offset: int, run: int) -> tuple[list[tuple[str, int, int]], Entry] | None:
        """Return the entry at ``offset`` and the facts of its files, or None if it is damaged."""
        check, writer, owner, size, facts = _ENTRY.unpack_from(self.entries, offset)
        if writer != run and not self.verified[index]:
            end = offset + size
            if owner != index or not offset + _ENTRY.size + facts <= end <= len(self.entries):
                return None
            if zlib.crc32(self.entries[offset + 8 : end]) != check:
                return None
            self.verified[index] = True
        memory = self.entries[offset : offset + size]
        if size < _LARGE:
            memory = memoryview(bytearray(memory))
        at = _ENTRY.size + facts
        files, lengths = pickle.loads(memory[_ENTRY.size : at])
        parts = []
        for length in lengths:
            at = _up(at, _ALIGNED)
            parts.append(memory[at : at + length])
            at += length
        return files, Entry(parts[0], parts[1:])


# ---- entries


def _laid_out(
    record: Record, files: Iterable[FileFacts], run: int, index: int, checked: bool
) -> list[bytes | memoryview]:
    """Return an entry's bytes in order. Head and buffers begin at multiples of ``_ALIGNED``."""
    contents: list[bytes | memoryview] = [record.head, *record.buffers]
    facts = pickle.dumps(([tuple(file) for file in files], [len(content) for content in contents]), 5)
    parts: list[bytes | memoryview] = [facts]
    size = _ENTRY.size + len(facts)
    for content in contents:
        padding = -size % _ALIGNED
        parts += [bytes(padding), content]
        size += padding + len(content)
    start = _ENTRY.pack(0, run, index, size, len(facts))
    check = 0
    if checked:
        for part in (start[8:], *parts):
            check = zlib.crc32(part, check)
    return [struct.pack("=q", check) + start[8:], *parts]


def _has_changed(file: tuple[str, int, int]) -> bool:
    path, size, mtime_ns = file
    try:
        found = os.stat(path)
    except OSError:
        return True
    return found.st_size != size or found.st_mtime_ns != mtime_ns


def _unit(size: int) -> int:
    return mmap.PAGESIZE if size >= _LARGE else _ALIGNED


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


# ---- the file


@contextmanager
def _locked(number: int) -> Iterator[None]:
    """Hold the file's lock. Each call opens the file anew: forks and threads that share an opening share its lock."""
    lock = os.open(f"/proc/self/fd/{number}", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _opened(path: Path, fixed: bytes, front: int, limit: int) -> tuple[_File, int]:
    """Open the file at ``path``, and return it with its size. One that does not fit is replaced."""
    for _ in range(_TRIES):
        try:
            file = _File(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600))
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            os.unlink(path)  # a symbolic link
            continue
        with _locked(file.number):
            found = os.fstat(file.number)
            if not _is_at(path, found):  # another run has replaced it meanwhile
                continue
            if _is_private(found):
                if found.st_size == 0:
                    _format(file.number, fixed, front, limit)
                    return file, limit
                size = _size(file.number, fixed, front, found.st_size)
                if size is not None:
                    return file, _reopened(file.number, size, limit)
            os.unlink(path)
    raise OSError("files in it are not private to their owner")


def _is_at(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), found)
    except FileNotFoundError:
        return False


def _is_private(found: os.stat_result) -> bool:
    """True if no other user can have written the file: its entries are unpickled."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _size(number: int, fixed: bytes, front: int, length: int) -> int | None:
    """Return the size of a file that an earlier run has made, or None if header or index does not fit."""
    head = os.pread(number, front, 0)
    if len(head) < front or head[: len(fixed)] != fixed:
        return None
    words = np.frombuffer(head, np.int64)
    size, tail, offsets = int(words[_SIZE]), int(words[_TAIL]), words[_WORDS:]
    offsets = offsets[offsets != 0]
    if not front <= tail <= size <= length:
        return None
    if offsets.size:
        last = int(offsets.max())
        if offsets.min() < front or last + _ENTRY.size > tail:
            return None
        entry = _ENTRY.unpack(os.pread(number, _ENTRY.size, last))
        if last + entry[3] > tail:
            return None
    return size


def _format(number: int, fixed: bytes, front: int, size: int) -> None:
    """Write header and index, the part that says that they are complete last.

    They are written through mappings later, which would kill the process if their blocks were not allocated.
    """
    _write(number, [bytes(_STEP)] * (front // _STEP) + [bytes(front % _STEP)], 0)
    os.ftruncate(number, size)
    _write(number, [struct.pack("=2q", size, front)], 8 * _SIZE)
    _write(number, [fixed], 0)


def _reopened(number: int, size: int, limit: int) -> int:
    """Prepare the file of an earlier run for this one, and return its size."""
    if size < limit:
        os.ftruncate(number, limit)
        _write(number, [struct.pack("=q", limit)], 8 * _SIZE)
    _write(number, [struct.pack("=2q", 0, 0)], 8 * _GRANTED)
    return max(size, limit)


def _write(number: int, parts: Iterable[bytes | memoryview], offset: int) -> None:
    for part in parts:
        rest = memoryview(part)
        while rest:
            written = os.pwrite(number, rest, offset)
            rest, offset = rest[written:], offset + written
