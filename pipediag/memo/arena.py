"""One file that all processes of a run store results in and read them from.

The file has a header, an index with open addressing, and entries. It grows as room is claimed. It is written with
``pwrite``, since a write through a mapping kills the process if the disk is full; only memory that is there already is
written directly. Reading takes no lock. An entry is visible once its word of the index is written, which comes last, so
a process may be killed at any moment. Entries are raw bytes with a description in Python's marshal format, which runs
no code when it is read.

In memory, processes claim whole large pages where the system has them, and take them when they claim them: the kernel
then makes and maps 2 MB at once instead of 512 pages, which else costs more than copying.
"""

from __future__ import annotations

import marshal
import mmap
import os
import secrets
import stat
import struct
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError
from .system import LARGE, Lock, Mapping, free_disk, free_memory, job_file, locked, opened_elsewhere, ranks_lock

#: First words of the header. A file in which one of them is different is made anew.
_FIXED = struct.Struct("=8s2q")  # magic, version, slots
_MAGIC, _VERSION = b"pipediag", 6
#: Further words of the header: size that the file may reach, end of the last claim, end of the room that was found
#: free, reason why no more entries are accepted, number of entries, their bytes.
_SIZE, _TAIL, _GRANTED, _FULL, _ENTRIES, _USED = range(3, 9)
#: First word of the index. A slot is two words: the beginning of the key, then place and size in units of ``_UNIT``.
_INDEX = 16
_SLOT = struct.Struct("=2q")
_UNIT, _SIZE_BITS = 64, 24
#: Bytes of an entry: at most, and as expected for the size of the index.
_LARGEST, _EXPECTED = _UNIT * ((1 << _SIZE_BITS) - 1), 1 << 14
_LEAST_SLOTS, _MOST_SLOTS = 1 << 12, 1 << 22
#: Beginning of an entry: check sum of the rest, run that wrote it, key, size of the body, and size of the description,
#: which is behind the body.
_START = struct.Struct("=2q16s2q16x")
#: Bytes that a process claims at a time, and the largest share of the whole room that they may be.
_CLAIMED, _SHARE = 16 << 20, 64
#: Bytes that may be claimed before the free room is measured again.
_STEP = 512 << 20
#: Values of the word _FULL other than the number of an operating system error.
_LIMIT, _SHORT, _NO_SLOT = -1, -2, -3
#: Maximum number of parts written in one call; Linux takes 1024.
_MOST_PARTS = 512
_CHUNK = 1 << 20
#: Maximum size of the description of a body that is made in place.
_DESCRIBED = 1 << 11
_NAME = "memo.cache"


class Entry(NamedTuple):
    """A stored result: its description, and its bytes, which are read-only and shared."""

    head: Any
    body: memoryview


class Space:
    """Room for an entry, in memory that is there already and is all 0.

    Attributes:
        room: all of it.
        body: to write the body to.
        kept: the body as others see it, read-only; None if no entry has it.
    """

    def __init__(self, begin: int, room: memoryview, nbytes: int) -> None:
        self.begin, self.room = begin, room
        self.body = room[_START.size : _START.size + nbytes]
        self.kept: memoryview | None = None


class Arena:
    """Results by their key of 16 bytes. It may be forked, or sent to spawned workers.

    Args:
        number: descriptor of a formatted file, which the arena owns.
        room: maximum bytes of entries.
        folder: where the file is; None if it is in memory only.
        run: a number of this run, whose own entries need no check.
    """

    def __init__(self, number: int, room: int, folder: Path | None, run: int) -> None:
        self.number = number
        self._room, self._folder, self._run = room, folder, run
        self._slots = struct.unpack("=q", os.pread(number, 8, 16))[0]
        self._front = _front(self._slots)
        size = struct.unpack("=q", os.pread(number, 8, 8 * _SIZE))[0]
        self._limit = min(self._front + room, size)
        content = Mapping(number, size)
        self._words = content.view[: self._front].cast("q")
        self._content = content.view
        # Memory is accounted for when it is used, so a second mapping takes none.
        self._large = Mapping(number, size, writable=True) if folder is None and self._claimable >= LARGE else None
        self._verified: set[int] = set()  # places of earlier runs' entries that are whole
        self._length = 0  # bytes that the file has at least
        self._claimed = _Claim()
        self._lock = Lock(number)

    def __del__(self) -> None:
        if "number" in self.__dict__:
            os.close(self.number)

    def __reduce__(self) -> Any:
        return _reopened, (DupFd(self.number), self._room, self._folder, self._run)

    @classmethod
    def create(cls, nbytes: int | None = None, folder: Path | None = None) -> Arena:
        """Make an arena, or open the one in ``folder``, or that of another rank of the job.

        Args:
            nbytes: maximum bytes of the entries; None for what is free, except for a reserve.
            folder: where the file outlives the run; None keeps it in memory.

        Raises:
            UsageError: the folder cannot be used, or the platform is not Linux.
        """
        if sys.platform != "linux":
            raise UsageError("results can be kept on Linux only")
        try:
            if folder is None:
                room = _up(free_memory() if nbytes is None else nbytes, mmap.PAGESIZE)
                return cls(_in_memory(room), room, None, 0)  # all its entries are of this run
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = folder / _NAME
            room = _up(free_disk(folder) + _taken(path) if nbytes is None else nbytes, mmap.PAGESIZE)
            return cls(_in_folder(path, room), room, folder, secrets.randbits(62))
        except OSError as error:
            advice = "" if folder is None else "; name a folder on this machine's disks that you may write to"
            raise UsageError(f"results cannot be kept in {folder or 'memory'}: {error}{advice}") from error

    def find(self, key: bytes) -> Entry | None:
        """Return the entry of a key, or None."""
        tag = _tag(key)
        for slot in self._probed(tag):
            begin, room = _place(self._words[_INDEX + 2 * slot + 1])
            if not room:
                return None
            if self._words[_INDEX + 2 * slot] != tag:
                continue
            if not self._reaches(begin, begin + room):
                continue
            entry = self._content[begin : begin + room]
            check, run, own, nbytes, described = _START.unpack_from(entry)
            behind = _START.size + _up(nbytes, _UNIT)
            if own != key or behind + described > room:
                continue
            body, head = entry[_START.size : _START.size + nbytes], entry[behind : behind + described]
            if run != self._run and begin not in self._verified:
                if _summed([entry[8 : _START.size], head], [body]) != check:
                    continue  # the machine crashed before the disk had all of it
                self._verified.add(begin)
            return Entry(marshal.loads(head), body)
        return None

    def space(self, nbytes: int) -> Space | None:
        """Return room for a body of so many bytes, to be given to :meth:`add` or :meth:`give_back`; None if no memory
        can be had that is sure to be there."""
        size = _START.size + _up(nbytes, _UNIT) + _DESCRIBED
        if self._large is None or not self._large.attempts:
            return None
        if self._words[_FULL] or size > min(_LARGEST, self._room):
            return None
        begin, is_there = self._taken(size)
        if begin and not is_there:
            self._claimed.give_back(begin, size)
        return Space(begin, self._large.view[begin : begin + size], nbytes) if is_there else None

    def give_back(self, space: Space) -> None:
        """Free the room of a body that is no longer used."""
        space.body[:] = bytes(len(space.body))
        self._claimed.give_back(space.begin, len(space.room))

    def add(self, key: bytes, head: Any, parts: Sequence[Any] | Space) -> bool:
        """Store a result, flat buffers of bytes one behind the other or room in which it was made.

        Return False if the key has an entry already, if it is too large, or without room.
        """
        if self._words[_FULL]:
            return False
        described = marshal.dumps(head, 2)  # from version 3 on, bytes depend on reference counts
        if isinstance(parts, Space):
            return self._add_made(key, described, parts)
        nbytes = sum(map(len, parts))
        size = _START.size + _up(nbytes, _UNIT) + len(described)
        if size > min(_LARGEST, self._room):
            return False
        start = _START.pack(0, self._run, key, nbytes, len(described))
        check = _summed([start[8:], described], [memoryview(part) for part in parts]) if self._folder is not None else 0
        try:
            begin, is_there = self._taken(size)
            if not begin:
                return False
            if self._large is not None and is_there:
                space, at = Space(begin, self._large.view[begin : begin + size], nbytes), 0
                for part in parts:
                    space.body[at : at + len(part)] = part
                    at += len(part)
                return self._add_made(key, described, space)
            padding = bytes(-nbytes % _UNIT)
            _write(self.number, [struct.pack("=q", check) + start[8:], *parts, padding, described], begin)
            return self._publish(key, begin, size)
        except OSError as error:
            self._refuse(error.errno or -1)
            return False

    def _add_made(self, key: bytes, described: bytes, space: Space) -> bool:
        nbytes = len(space.body)
        behind = _START.size + _up(nbytes, _UNIT)
        if behind + len(described) > len(space.room):
            return False
        _START.pack_into(space.room, 0, 0, self._run, key, nbytes, len(described))
        space.room[behind : behind + len(described)] = described
        if not self._publish(key, space.begin, len(space.room)):
            return False
        space.kept = self._content[space.begin + _START.size : space.begin + _START.size + nbytes]
        return True

    @property
    def entries(self) -> int:
        return self._words[_ENTRIES]

    @property
    def used(self) -> int:
        """Bytes that the entries take."""
        return self._words[_USED]

    @property
    def room(self) -> int:
        """Maximum bytes of entries."""
        return self._room

    @property
    def full(self) -> str:
        """Why no further entry is accepted; empty if any is."""
        code = self._words[_FULL]
        if code == _SHORT:
            return f"little {'memory' if self._folder is None else 'room on the disk'} is left"
        if code in (_LIMIT, _NO_SLOT):
            return "the limit is reached"
        return os.strerror(code) if code else ""

    def _reaches(self, begin: int, end: int) -> bool:
        """Return whether the file and this mapping hold these bytes: reading behind the file's end kills the process.

        A damaged index may name any place. A later run may have made the file longer than the mapping.
        """
        if end > self._length:
            self._length = min(os.fstat(self.number).st_size, len(self._content))
        return self._front <= begin and end <= self._length

    def _probed(self, tag: int) -> Iterator[int]:
        mask = self._slots - 1
        for step in range(self._slots):
            yield (tag + step) & mask

    def _publish(self, key: bytes, begin: int, size: int) -> bool:
        """Make a written entry visible, unless another process was first."""
        tag = _tag(key)
        with self._lock:
            for slot in self._probed(tag):
                held, room = _place(self._words[_INDEX + 2 * slot + 1])
                if not room:
                    break
                is_tagged = self._words[_INDEX + 2 * slot] == tag and self._reaches(held, held + room)
                if is_tagged and self._content[held + 16 : held + 32] == key:
                    whole = self.find(key) is not None  # else a crash of the machine has damaged it
                    if whole:
                        return False
            entries = self._words[_ENTRIES] + 1
            if entries > self._slots * 3 // 4:
                self._refuse(_NO_SLOT)
                return False
            word = begin // _UNIT << _SIZE_BITS | _up(size, _UNIT) // _UNIT
            os.pwrite(self.number, _SLOT.pack(tag, word), 8 * (_INDEX + 2 * slot))
            os.pwrite(self.number, _SLOT.pack(entries, self._words[_USED] + _up(size, _UNIT)), 8 * _ENTRIES)
        return True

    @property
    def _claimable(self) -> int:
        """Bytes that are claimed at a time for small entries."""
        return min(_CLAIMED, self._room // _SHARE)

    def _taken(self, size: int) -> tuple[int, bool]:
        """Return the offset of ``size`` bytes that only this call may write to, 0 without room, and whether their
        memory is there."""
        return self._claimed.taken(size) or self._claim(size)

    def _claim(self, size: int) -> tuple[int, bool]:
        """Claim ``size`` bytes, and more for the next calls."""
        unit = _UNIT if self._large is None else LARGE
        with self._lock:
            begin = _up(self._words[_TAIL], unit)
            more = 0 if size > self._claimable // 8 else min(self._claimable, self._limit - begin)
            end = begin + _up(max(size, more), unit)
            if end > self._limit:
                end = begin + _up(size, _UNIT)
            if end > self._limit:
                if size <= _CHUNK:  # a large one is skipped, smaller ones may still fit
                    self._refuse(_LIMIT)
                return 0, False
            if end > self._words[_GRANTED]:
                spare = (free_memory() if self._folder is None else free_disk(self._folder)) - (end - begin)
                if spare < 0:
                    self._refuse(_SHORT)
                    return 0, False
                _set(self.number, _GRANTED, end + min(spare, _STEP))
            _grow(self.number, end)
            _set(self.number, _TAIL, end)
        is_there = self._large is not None and end % LARGE == 0 and self._large.enlarge(begin, end)
        self._claimed.keep(begin + _up(size, _UNIT), end, is_there)
        return begin, is_there

    def _refuse(self, code: int) -> None:
        """Accept no further entry."""
        try:
            _set(self.number, _FULL, code)
        except OSError:  # a full disk: the next entry finds that out again
            pass


class _Claim:
    """Room that a process has claimed and not written to yet. Its threads share it; a fork begins without."""

    def __init__(self) -> None:
        self._process = 0
        self._lock = threading.Lock()
        self._begin = self._end = 0
        self._is_there = False

    def keep(self, begin: int, end: int, is_there: bool) -> None:
        """Keep claimed room for the next calls, unless more is left of an earlier claim."""
        with self._own():
            if end - begin > self._end - self._begin:
                self._begin, self._end, self._is_there = begin, end, is_there

    def taken(self, size: int) -> tuple[int, bool] | None:
        """Return the offset of ``size`` bytes, and whether their memory is there; None if too little is left."""
        with self._own():
            begin, end = self._begin, self._begin + _up(size, _UNIT)
            if end > self._end:
                return None
            self._begin = end
            return begin, self._is_there

    def give_back(self, begin: int, size: int) -> None:
        """Free the latest bytes that were taken; do nothing if others were taken since."""
        with self._own():
            if self._begin == begin + _up(size, _UNIT):
                self._begin = begin

    def _own(self) -> threading.Lock:
        if self._process != os.getpid():
            self._process, self._lock, self._begin, self._end = os.getpid(), threading.Lock(), 0, 0
        return self._lock


def _reopened(number: Any, room: int, folder: Path | None, run: int) -> Arena:
    return Arena(number.detach(), room, folder, run)


def _in_memory(room: int) -> int:
    """Make a file that exists in memory only, or open the one of another rank of the job."""
    name = job_file("memo", os.environ)
    if not name:
        return _formatted(os.memfd_create("pipediag"), room)
    with ranks_lock(name):
        number = opened_elsewhere(name)
        return _formatted(os.memfd_create(name), room) if number is None else number


def _in_folder(path: Path, room: int) -> int:
    """Open the file, or replace it if it does not fit or another user could have written it."""
    for _ in range(100):  # other runs may replace it at the same time
        try:
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError:
            if not path.is_symlink():
                raise
            path.unlink()
            continue
        try:
            with locked(number):
                found = os.fstat(number)
                if not _is_at(path, found):  # another run has replaced it meanwhile
                    os.close(number)
                    continue
                if _is_private(found) and found.st_size == 0:
                    return _formatted(number, room)
                if _is_private(found) and _reused(number, room, found.st_size):
                    return number
                path.unlink()
        except OSError:
            os.close(number)
            raise
        os.close(number)
    raise PermissionError("its files cannot be made private to their owner")


def _formatted(number: int, room: int) -> int:
    """Make an empty arena of a file. The words that mark it as complete are written last."""
    slots = _LEAST_SLOTS
    while slots < min(room // _EXPECTED, _MOST_SLOTS):
        slots *= 2
    front = _front(slots)
    # Reading a hole of a file in memory takes memory too, and kills the process if there is none.
    for begin in range(0, front, _CHUNK):
        _write(number, [bytes(min(_CHUNK, front - begin))], begin)
    _set(number, _SIZE, front + room)
    _set(number, _TAIL, front)
    _write(number, [_FIXED.pack(_MAGIC, _VERSION, slots)], 0)
    return number


def _reused(number: int, room: int, length: int) -> bool:
    """Prepare the file that an earlier run has made, ``length`` bytes long. Return False if it does not fit."""
    head = os.pread(number, 8 * _INDEX, 0)
    if len(head) < 8 * _INDEX or _FIXED.unpack_from(head)[:2] != (_MAGIC, _VERSION):
        return False
    words = memoryview(head).cast("q")
    slots, size = words[2], words[_SIZE]
    known = 0 < slots <= _MOST_SLOTS and slots & (slots - 1) == 0
    if not known or not _front(slots) <= words[_TAIL] <= min(size, length):
        return False
    if size < _front(slots) + room:
        _set(number, _SIZE, _front(slots) + room)
    _write(number, [bytes(16)], 8 * _GRANTED)  # this and the next word held for the earlier run
    return True


def _taken(path: Path) -> int:
    """Return the bytes of the disk that a file takes."""
    return path.lstat().st_blocks * 512 if path.exists() else 0


def _is_at(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.lstat(), found)
    except FileNotFoundError:
        return False


def _is_private(found: os.stat_result) -> bool:
    """Return whether no other user can have written the file."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _front(slots: int) -> int:
    return _up(8 * (_INDEX + 2 * slots), mmap.PAGESIZE)


def _grow(number: int, length: int) -> None:
    """Make a file at least ``length`` bytes long."""
    if os.fstat(number).st_size < length:
        os.ftruncate(number, length)


def _set(number: int, word: int, value: int) -> None:
    os.pwrite(number, struct.pack("=q", value), 8 * word)


def _write(number: int, parts: Iterable[Any], offset: int) -> None:
    """Write ``parts`` one after the other. Raises OSError if the disk is full."""
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        written = os.pwritev(number, left[:_MOST_PARTS], offset)
        offset += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _summed(described: Sequence[Any], body: Sequence[memoryview]) -> int:
    """Return a check sum that finds pages that were never written, and every change of one word.

    The parts' sizes but the last are multiples of 8.
    """
    import numpy as np

    total = sum(map(zlib.crc32, described))
    for part in body:
        words = len(part) // 8
        total += int(np.frombuffer(part[: 8 * words], np.uint64).sum(dtype=np.uint64)) if words else 0
        total += int.from_bytes(part[8 * words :], "little")
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)  # all 64 bits: the last one is a number's sign


def _tag(key: bytes) -> int:
    return int.from_bytes(key[:8], sys.byteorder, signed=True)


def _place(word: int) -> tuple[int, int]:
    """Return where an entry begins and the bytes that it takes, from its word of the index."""
    return (word >> _SIZE_BITS) * _UNIT, (word & (1 << _SIZE_BITS) - 1) * _UNIT


def _up(size: int, unit: int) -> int:
    """Round ``size`` up to a multiple of ``unit``."""
    return -(-size // unit) * unit
