"""Store encoded samples in one file that all processes of a run map.

    store = Store.create(samples=len(dataset), nbytes=limit)
    store.put(index, records.encode(value), [FileFacts.of(path)])  # True if it was stored
    record = store.get(index)  # None without an entry, or if a file that it was made from has changed
    value = records.decode(record)
    store.full  # why no further entry is accepted, or None

Without a folder the file exists in memory only (``memfd_create``): it needs no room in /dev/shm, and vanishes with the
last process that uses it, however that ends. The ranks of a job on one machine share it. With a folder it is
``<key>.cache`` there, readable by its owner only, and serves later runs.

The file holds a header and the index, one word for each sample, followed by entries. A process claims room at the end
for several entries at a time, under a lock on the file that the kernel releases if the process dies. It writes an entry
there, and then publishes it by storing its place and size in the index. No reader ever sees a part of an entry, and a
killed writer loses only the room that it claimed, which takes no memory until it is written to. Entries never move or
change; a replaced one only loses its word.

Readers copy a whole entry into memory of their own, because user code may write into it. A large entry that only
pictures are made from cannot be written into: readers view it in a mapping instead.
"""

from __future__ import annotations

import errno
import marshal
import mmap
import os
import secrets
import struct
import sys
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..errors import UsageError
from .cache_file import (
    CHANGED,
    DAMAGED,
    FULL,
    GRANTED,
    INDEX,
    LARGEST,
    SIZE,
    TAIL,
    UNIT,
    CacheFile,
    in_folder,
    in_memory,
    place,
    places,
    remove_unused,
    up,
)
from .records import Record
from .room import free_disk, free_memory

#: Start of an entry: check sum of what follows it, run, sample, size of the entry, size of the facts of its files,
#: number of its parts. The sizes of the parts follow, then the facts, then the parts, each at a multiple of UNIT.
_START = struct.Struct("=4q2I")
#: Added to the number of parts if decoding writes into none of them: a picture copies what it is made from.
_READ_ONLY = 1 << 31
_SIZES = [struct.Struct(f"={number}q") for number in range(9)]
#: Larger entries are read into memory that torch aligns.
_LARGE = 4 * mmap.PAGESIZE
#: Bytes that a process claims at a time, and the largest share of the whole room that they may be.
_CLAIMED, _SHARE = 16 << 20, 64
#: Bytes that may be claimed before the free room is measured again.
_STEP = 64 << 20
#: Values of the word FULL other than the number of an operating system error.
_LIMIT, _SHORT = -1, -2


class FileFacts(NamedTuple):
    """State of a file before it was read."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileFacts:
        """Look at the file now. Raises OSError if it does not exist."""
        found = os.stat(path)
        name = os.fspath(path)
        return cls(name if os.path.isabs(name) else os.path.abspath(name), found.st_size, found.st_mtime_ns)


class Store:
    """Records of a dataset's samples. It may be forked, or sent to spawned workers.

    After :meth:`close` it is empty and accepts nothing.
    """

    def __init__(self, file: CacheFile, room: int, folder: Path | None, run: int) -> None:
        opened = _Open(file)
        self.samples = file.samples
        self._limit = min(file.front + room, opened.words[SIZE])  # end of the last entry at most
        self._claimed = min(_CLAIMED, room // _SHARE)
        self._folder = folder
        self._run = run
        self._open: _Open | None = opened

    @classmethod
    def create(cls, samples: int, nbytes: int | None = None, folder: Path | None = None, key: str = "") -> Store:
        """Make a store, or open the one that earlier runs have left in ``folder``.

        Args:
            samples: length of the dataset.
            nbytes: maximum size of the entries together; None for what is free, except for a reserve.
            folder: where the store outlives the run; None to keep it in memory.
            key: name of the store in ``folder`` and among the ranks of a job; different content needs different keys.

        Raises:
            UsageError: the folder cannot be used, or the platform is not Linux.
        """
        if sys.platform != "linux":
            raise UsageError("samples can be kept on Linux only")
        try:
            if folder is None:
                room = up(free_memory() if nbytes is None else nbytes, mmap.PAGESIZE)
                # Its entries have no check sums; the ranks of a job that share it count as one run.
                return cls(in_memory(samples, room, key), room, None, run=0)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_unused(folder, but=key)
            room = up(free_disk(folder) if nbytes is None else nbytes, mmap.PAGESIZE)
            return cls(in_folder(folder, key, samples, room), room, folder, run=secrets.randbits(62))
        except OSError as error:
            advice = "" if folder is None else "; name a folder on this machine's disks that you may write to"
            raise UsageError(f"samples cannot be kept in {folder or 'memory'}: {error}{advice}") from error

    def get(self, index: int) -> Record | None:
        """Return a sample's record, or None without an entry. An entry whose files have changed is dropped.

        The record's buffers are read-only, or in memory that only this process has.
        """
        opened = self._open
        if opened is None:
            return None
        word = opened.word(index)
        if word == 0:
            return None
        found = opened.read(index, word, self._run)
        if found is None:
            self._drop(opened, index, word, DAMAGED)
            return None
        files, record = found
        if any(_has_changed(*file) for file in files):
            self._drop(opened, index, word, CHANGED)
            return None
        return record

    def put(self, index: int, record: Record, files: Sequence[FileFacts]) -> bool:
        """Store a sample's record, made from ``files``. Return False if it has an entry already, or without room."""
        opened = self._open
        if opened is None or opened.words[FULL] or opened.word(index):
            return False
        parts, size = _laid_out(record, files, self._run, index, checked=self._folder is not None)
        if size > LARGEST:
            return False
        try:
            offset = opened.room.taken(size)
            if offset is None:
                offset = self._claim(opened, size)
            if offset is None:
                return False
            opened.file.write(parts, offset)
            opened.file.set(INDEX + index, place(offset, size))
        except OSError as error:
            self._refuse(opened, error.errno or errno.EIO)
            return False
        return True

    @property
    def used(self) -> int:
        """Bytes that the entries take, except for those that were replaced."""
        return int(places(self._index())[1].sum())

    @property
    def needed(self) -> int:
        """Bytes that entries of all samples would take, judged by the present ones."""
        return int(self.used * self.samples // max(1, self.entries))

    @property
    def entries(self) -> int:
        """Number of samples that have an entry."""
        return int(np.count_nonzero(self._index()))

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
        """Release the file. Entries that were read remain valid."""
        self._open = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self

    def _index(self) -> np.ndarray:
        opened = self._open
        words = memoryview(b"") if opened is None else opened.words[INDEX : INDEX + self.samples]
        found: np.ndarray = np.frombuffer(words, np.int64)
        return found

    def _header(self, word: int) -> int:
        opened = self._open
        return 0 if opened is None else opened.words[word]

    def _claim(self, opened: _Open, size: int) -> int | None:
        """Return the offset of ``size`` bytes that only this call may write to, or None without room.

        Claim more for the next calls.
        """
        words = opened.words
        with opened.file.locked():
            if words[FULL]:
                return None
            begin = words[TAIL]
            more = 0 if size > self._claimed // 8 else min(self._claimed, self._limit - begin)
            end = begin + up(max(size, more), UNIT)
            if end > self._limit:
                self._refuse(opened, _LIMIT)
                return None
            if end > words[GRANTED]:
                room = free_memory() if self._folder is None else free_disk(self._folder)
                spare = room - (end - begin)
                if spare < 0:
                    self._refuse(opened, _SHORT)
                    return None
                opened.file.set(GRANTED, end + min(spare, _STEP))
            opened.file.set(TAIL, end)
        opened.room.keep(begin + up(size, UNIT), end)
        return begin

    def _drop(self, opened: _Open, index: int, word: int, count: int) -> None:
        """Drop an entry. Count it once, however many processes find it out of date."""
        try:
            with opened.file.locked():
                if opened.word(index) == word:
                    opened.file.set(INDEX + index, 0)
                    opened.file.set(count, opened.words[count] + 1)
        except OSError:  # tried again at the next ``get``
            pass

    def _refuse(self, opened: _Open, code: int) -> None:
        """Accept no further entry."""
        try:
            opened.file.set(FULL, code)
        except OSError:  # a full disk: the next ``put`` finds that out again
            pass


class _Open:
    """The file as one process has it open.

    Attributes:
        words: header and index, which all processes see.
    """

    def __init__(self, file: CacheFile) -> None:
        self.file = file
        memory = mmap.mmap(file.number, file.front, mmap.MAP_SHARED, mmap.PROT_READ)
        self.words = memoryview(memory).cast("q")
        self._content = memoryview(mmap.mmap(file.number, self.words[SIZE], mmap.MAP_SHARED, mmap.PROT_READ))
        self._verified: np.ndarray = np.zeros(file.samples, np.int64)  # words of earlier runs' entries that are whole
        self._room = _Room()

    def __reduce__(self) -> Any:
        return _Open, (self.file,)

    def word(self, index: int) -> int:
        """Return a sample's word of the index, 0 if it has no entry."""
        if not 0 <= index < self.file.samples:
            raise IndexError(f"sample {index} of {self.file.samples}")
        return self.words[INDEX + index]

    def read(self, index: int, word: int, run: int) -> tuple[list[tuple[str, int, int]], Record] | None:
        """Return the facts of an entry's files and its record, or None if it is damaged."""
        offset, room = places(word)
        memory = self._shown(offset, room) if room >= _LARGE else None
        if memory is None:
            memory = memoryview(bytearray(room) if room < _LARGE else torch.empty(room, dtype=torch.uint8).numpy())
            try:
                if os.preadv(self.file.number, [memory], offset) != room:
                    return None
            except (OSError, OverflowError):
                return None
        check, writer, owner, size, facts, number = _START.unpack_from(memory)
        if owner != index or up(size, UNIT) != room:
            return None
        if writer != run and self._verified[index] != word:
            if zlib.crc32(memory[8:size]) != check:
                return None
            self._verified[index] = word
        lengths = _sizes(number & ~_READ_ONLY)
        at = _START.size + lengths.size
        files = marshal.loads(memory[at : at + facts]) if facts else []
        at += facts
        parts = []
        for length in lengths.unpack_from(memory, _START.size):
            at += -at % UNIT
            parts.append(memory[at : at + length])
            at += length
        return files, Record(parts[0], parts[1:])

    def _shown(self, offset: int, room: int) -> memoryview | None:
        """Return a large entry in the mapping, or None if its parts need memory of their own."""
        memory = self._content[offset : offset + room]
        if len(memory) < room or not _START.unpack_from(memory)[5] & _READ_ONLY:
            return None
        return memory

    @property
    def room(self) -> _Room:
        if self._room.process != os.getpid():  # a fork must not write to what its parent has claimed
            self._room = _Room()
        return self._room


class _Room:
    """Room that a process has claimed and not written to yet. Its threads share it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._begin = self._end = 0

    def keep(self, begin: int, end: int) -> None:
        """Keep claimed room for the next calls, unless more is left of an earlier claim."""
        with self._lock:
            if end - begin > self._end - self._begin:
                self._begin, self._end = begin, end

    def taken(self, size: int) -> int | None:
        """Return the offset of ``size`` bytes, or None if too little is left."""
        with self._lock:
            offset, end = self._begin, self._begin + up(size, UNIT)
            if end > self._end:
                return None
            self._begin = end
            return offset


def _sizes(number: int) -> struct.Struct:
    return _SIZES[number] if number < len(_SIZES) else struct.Struct(f"={number}q")


def _laid_out(
    record: Record, files: Sequence[FileFacts], run: int, index: int, checked: bool
) -> tuple[list[bytes | memoryview], int]:
    """Return an entry's bytes in order, and their number."""
    contents: list[bytes | memoryview] = [record.head, *record.buffers]
    facts = marshal.dumps([tuple(file) for file in files]) if files else b""
    lengths = _sizes(len(contents)).pack(*map(len, contents))
    size = _START.size + len(lengths) + len(facts)
    parts: list[bytes | memoryview] = [lengths, facts]
    for content in contents:
        padding = -size % UNIT
        parts += [bytes(padding), content]
        size += padding + len(content)
    read_only = _READ_ONLY if all(buffer.readonly for buffer in record.buffers) else 0
    start = _START.pack(0, run, index, size, len(facts), len(contents) | read_only)
    check = 0
    if checked:
        for part in (start[8:], *parts):
            check = zlib.crc32(part, check)
    return [struct.pack("=q", check) + start[8:], *parts], size


def _has_changed(path: str, size: int, mtime_ns: int) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return True
    return found.st_size != size or found.st_mtime_ns != mtime_ns
