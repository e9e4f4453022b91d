"""Store encoded samples in one file that all processes of a run map.

    store = Store.create(samples=len(dataset), nbytes=limit)
    store.put(index, records.encode(value), [FileFacts.of(path)])  # True if it was stored
    entry = store.get(index)  # None if it has none, or if a file it was made from has changed
    value = records.decode(entry.head, entry.buffers, copy=False)
    store.full  # why no further entry is accepted, or None

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
import mmap
import os
import pickle
import secrets
import struct
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UsageError
from .cache_file import CHANGED, DAMAGED, ENTRY, FULL, GRANTED, INDEX, TAIL, CacheFile, in_folder, in_memory, up
from .records import Record
from .room import free_disk, free_memory

_ALIGNED = 64
#: Smaller entries share pages, and are copied when they are read.
_LARGE = 4 * mmap.PAGESIZE
#: Bytes that may be claimed before the free room is looked at again.
_STEP = 64 << 20
#: Values of the word FULL other than the number of an operating system error.
_LIMIT, _SHORT = -1, -2
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
    """Records of a dataset's samples. It may be forked, or sent to workers that are spawned.

    After :meth:`close` it is empty and accepts nothing.
    """

    def __init__(self, file: CacheFile, limit: int, folder: Path | None) -> None:
        self.samples = file.samples
        self._file: CacheFile | None = file
        self._limit = limit  # end of the last entry at most
        self._folder = folder
        self._run = secrets.randbits(62)
        self._mapping: _Mapping | None = None

    @classmethod
    def create(cls, samples: int, nbytes: int, folder: Path | None = None, key: str = "") -> Store:
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
        nbytes = up(nbytes, mmap.PAGESIZE)
        try:
            file = in_memory(samples, nbytes) if folder is None else in_folder(folder, key, samples, nbytes)
            store = cls(file, file.front + nbytes, folder)
            store._mapped()
        except OSError as error:
            raise UsageError(f"samples cannot be kept in {folder or 'memory'}: {error}") from error
        return store

    def get(self, index: int) -> Entry | None:
        """Return a sample's entry, or None if it has none. An entry whose files have changed is dropped."""
        mapping = self._mapped()
        if mapping is None:
            return None
        offset = mapping.offset(index)
        if offset == 0:
            return None
        found = mapping.read(index, offset, self._run)
        if found is None:
            self._drop(mapping, index, offset, DAMAGED)
            return None
        files, entry = found
        if any(map(_has_changed, files)):
            self._drop(mapping, index, offset, CHANGED)
            return None
        return entry

    def put(self, index: int, record: Record, files: Iterable[FileFacts]) -> bool:
        """Store a sample's record, made from ``files``. Return False if it has an entry, or if there is no room."""
        mapping = self._mapped()
        if mapping is None or mapping.words[FULL] or mapping.offset(index):
            return False
        parts = _laid_out(record, files, self._run, index, checked=self._folder is not None)
        try:
            offset = self._claim(mapping, index, sum(map(len, parts)))
            if offset is None:
                return False
            mapping.file.write(parts, offset)
            mapping.file.set(INDEX + index, offset)
        except OSError as error:
            self._refuse(mapping, error.errno or errno.EIO)
            return False
        return True

    @property
    def used(self) -> int:
        """Bytes that the entries take, including those that were replaced."""
        mapping = self._mapped()
        return 0 if mapping is None else mapping.words[TAIL] - mapping.file.front

    @property
    def needed(self) -> int:
        """Bytes that entries of all samples would take, judged by those that it has."""
        return int(self.used * self.samples // max(1, self.entries))

    @property
    def entries(self) -> int:
        """Number of samples that have an entry."""
        mapping = self._mapped()
        return 0 if mapping is None else int(np.count_nonzero(np.frombuffer(mapping.words[INDEX:], np.int64)))

    @property
    def changed(self) -> int:
        """Number of entries dropped since the last run began, because a file had changed."""
        return self._header(CHANGED)

    @property
    def damaged(self) -> int:
        """Number of entries of earlier runs dropped since then, because their check sum was wrong."""
        return self._header(DAMAGED)

    @property
    def full(self) -> str | None:
        """Why no further entry is accepted, or None."""
        code = self._header(FULL)
        if code == _SHORT:
            return f"little {'memory' if self._folder is None else 'room on the disk'} is left"
        if code == _LIMIT:
            return "its limit is reached"
        return os.strerror(code) if code else None

    def close(self) -> None:
        """Release the file. Views of its entries remain valid."""
        self._file = self._mapping = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapping": None}

    def _mapped(self) -> _Mapping | None:
        """Return this process' mapping, or None if the store is closed."""
        file = self._file
        if file is None:
            return None
        mapping = self._mapping
        if mapping is None or mapping.process != os.getpid():
            # A fork's parent may have written into the pages of its mapping.
            mapping = self._mapping = _Mapping(file)
        return mapping

    def _header(self, word: int) -> int:
        mapping = self._mapped()
        return 0 if mapping is None else mapping.words[word]

    def _claim(self, mapping: _Mapping, index: int, size: int) -> int | None:
        """Return the offset of ``size`` bytes that only this call may write to, or None if there are none."""
        words, unit = mapping.words, mmap.PAGESIZE if size >= _LARGE else _ALIGNED
        with mapping.file.locked():
            if words[FULL] or mapping.offset(index):
                return None
            begin = up(words[TAIL], unit)
            end = begin + up(size, unit)
            if end > self._limit:
                self._refuse(mapping, _LIMIT)
                return None
            if end > words[GRANTED]:
                room = free_memory() if self._folder is None else free_disk(self._folder)
                spare = room - (end - words[TAIL])
                if spare < 0:
                    self._refuse(mapping, _SHORT)
                    return None
                mapping.file.set(GRANTED, end + min(spare, _STEP))
            mapping.file.set(TAIL, end)
            return begin

    def _drop(self, mapping: _Mapping, index: int, offset: int, count: int) -> None:
        """Drop the entry at ``offset``, and count it once, however many processes find it outdated."""
        try:
            with mapping.file.locked():
                if mapping.offset(index) == offset:
                    mapping.file.set(INDEX + index, 0)
                    mapping.file.set(count, mapping.words[count] + 1)
        except OSError:  # tried again at the next ``get``
            pass

    def _refuse(self, mapping: _Mapping, code: int) -> None:
        """Accept no further entry."""
        try:
            mapping.file.set(FULL, code)
        except OSError:  # a full disk: the next ``put`` finds that out again
            pass


class _Mapping:
    """One process' copy-on-write view of the file.

    Attributes:
        words: header and index.
        verified: for each sample, the offset of the entry of another run whose check sum was right.
    """

    def __init__(self, file: CacheFile) -> None:
        self.file = file
        self.process = os.getpid()
        self.memory = mmap.mmap(file.number, file.size, mmap.MAP_PRIVATE | _MAP_NORESERVE)
        self.words = memoryview(self.memory)[: file.front].cast("q")
        self.verified: np.ndarray = np.zeros(file.samples, np.int64)

    def offset(self, index: int) -> int:
        """Return where a sample's entry begins, 0 if it has none."""
        if not 0 <= index < self.file.samples:
            raise IndexError(f"sample {index} of {self.file.samples}")
        offset = self.words[INDEX + index]
        return offset if offset <= self.file.size - ENTRY.size else 0

    def read(self, index: int, offset: int, run: int) -> tuple[list[tuple[str, int, int]], Entry] | None:
        """Return the entry at ``offset`` and the facts of its files, or None if it is damaged."""
        check, writer, owner, size, facts = ENTRY.unpack_from(self.memory, offset)
        memory = memoryview(self.memory)[offset : offset + size]
        if owner != index or not ENTRY.size < ENTRY.size + facts <= size == len(memory):
            return None
        if writer != run and self.verified[index] != offset:
            if pages := self.pages(index):
                self.memory.madvise(mmap.MADV_WILLNEED, pages.start, len(pages))  # reads it from the disk at once
            if zlib.crc32(memory[8:]) != check:
                return None
            self.verified[index] = offset
        if size < _LARGE:
            memory = memoryview(bytearray(memory))
        at = ENTRY.size + facts
        files, lengths = pickle.loads(memory[ENTRY.size : at])
        parts = []
        for length in lengths:
            at = up(at, _ALIGNED)
            parts.append(memory[at : at + length])
            at += length
        return files, Entry(parts[0], parts[1:])

    def pages(self, index: int) -> range:
        """Return the bytes of a sample's entry, empty if it has none or shares its pages with others."""
        offset = self.offset(index)
        size = ENTRY.unpack_from(self.memory, offset)[3] if offset else 0
        if size < _LARGE or offset % mmap.PAGESIZE:  # the second is a damaged one
            return range(0)
        return range(offset, min(offset + size, self.file.size))


def _laid_out(
    record: Record, files: Iterable[FileFacts], run: int, index: int, checked: bool
) -> list[bytes | memoryview]:
    """Return an entry's bytes in order. Head and buffers begin at multiples of ``_ALIGNED``."""
    contents: list[bytes | memoryview] = [record.head, *record.buffers]
    facts = pickle.dumps(([tuple(file) for file in files], [len(content) for content in contents]), 5)
    parts: list[bytes | memoryview] = [facts]
    size = ENTRY.size + len(facts)
    for content in contents:
        padding = -size % _ALIGNED
        parts += [bytes(padding), content]
        size += padding + len(content)
    start = ENTRY.pack(0, run, index, size, len(facts))
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
