"""Answer a call from what is kept, or make it plainly and keep its result."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial, wraps
from multiprocessing.reduction import DupFd
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ..clock import time
from ..patches import alive, replaced, when_imported
from . import calls, lent, pictures
from .arena import Arena, Entry, Space
from .calls import FAMILIES, Call
from .pure import memos
from .system import locked
from .values import Packed

CALLS = (*pictures.CALLS, *calls.CALLS)
#: Seconds to read a result back: for a call, and for a byte. What is made faster than twice that is not kept.
_READ_S, _BYTE_S = 20e-6, 0.15e-9
#: A family whose results do not recur may take this share of the room; judged after so many calls.
_UNPROVEN, _JUDGED, _RECURRING = 1 / 4, 500, 1 / 20
#: Calls of a process between two looks at whether a family's results recur.
_EVERY = 64

#: What the present thread is in: a call that is being made.
_making = threading.local()
_memos: weakref.WeakValueDictionary[tuple[str, int | None], Memo] = weakref.WeakValueDictionary()


class Memo:
    """Results of known calls. It may be forked, or sent to spawned workers."""

    def __init__(self, arena: Arena, tally: Tally, clock: Callable[[], float] = time.perf_counter) -> None:
        self.arena, self.tally = arena, tally
        self._clock = clock
        self._calls = 0
        self._idle: set[int] = set()  # families whose results do not recur
        self._process, self._lock, self._users, self._undo = 0, threading.Lock(), 0, ExitStack()

    def __reduce__(self) -> Any:
        return Memo, (self.arena, self.tally)

    def __deepcopy__(self, copies: dict[int, Any]) -> Memo:
        return self

    @classmethod
    def shared(cls, nbytes: int | None, folder: Path | None) -> Memo:
        """Return this process's memo for a folder or for memory; make it if no loader has one.

        Raises:
            UsageError: the folder cannot be used, or the platform is not Linux.
        """
        where = "" if folder is None else os.path.abspath(folder)
        memo = _memos.get((where, nbytes))
        if memo is None:
            memo = _memos[where, nbytes] = cls(Arena.create(nbytes, folder), Tally())
        return memo

    def recall(
        self,
        family: int,
        key: Callable[[], bytes],
        plain: Callable[[], Any],
        pack: Callable[[Any], Packed],
        unpack: Callable[[Entry], Any],
    ) -> Any:
        """Return what ``plain()`` returns, from an earlier call with the same key if possible.

        Any error of ``key``, ``pack`` or ``unpack`` means that the call is made plainly, or that its result is not
        kept. Calls inside a call are made plainly.
        """
        if getattr(_making, "calls", False) or family in self._idle:
            return plain()
        try:
            name = key()
        except Exception:
            return plain()
        try:
            entry = self.arena.find(name)
            if entry is not None:
                result = unpack(entry)
                self.tally.add(family, HITS)
                return result
        except Exception:  # such as a result of another version
            return plain()
        began = self._clock()
        _making.calls, _making.warned = True, False
        try:
            result = plain()
        finally:
            _making.calls = False
        took = self._clock() - began
        if not _making.warned:  # else every call warns
            with suppress(Exception):  # it cannot come back equal
                self._keep(family, name, pack, result, took)
        return result

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Answer the known calls of this process within the context."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._undo = ExitStack()
                memos.append(self)
                self._undo.callback(memos.remove, self)
                self._undo.enter_context(layered(warnings, "warn", _noting))
                for call in CALLS:
                    self._undo.enter_context(when_imported(call.module, partial(self._patch, call)))
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    lent.own_all()
                    self._undo.close()

    @property
    def words(self) -> str:
        """What is kept and was answered, by family; empty before the first."""
        found = []
        for number, name in enumerate(FAMILIES):
            hits, made = self.tally.of(number, HITS), self.tally.of(number, MADE)
            if hits or made:
                found.append(f"{name}: {made:,} calls made, {hits:,} answered from the cache")
        return "; ".join(found)

    @property
    def kept_as(self) -> str:
        """In which form samples are kept, such as "kept as Pillow gives them"."""
        names = [name for number, name in enumerate(FAMILIES) if self.tally.of(number, MADE)]
        return f"kept as {' and '.join(names)} give{'s' if len(names) == 1 else ''} them"

    @property
    def hits(self) -> int:
        """Number of calls that were answered from what is kept."""
        return sum(self.tally.of(number, HITS) for number in range(len(FAMILIES)))

    @property
    def kept(self) -> int:
        """Bytes that this run has stored."""
        return sum(self.tally.of(number, BYTES) for number in range(len(FAMILIES)))

    def _patch(self, call: Call, module: Any) -> None:
        try:
            owner = attrgetter(call.owner)(module) if call.owner else module
        except AttributeError:  # of a version that has none, or built without
            return
        if type(owner) is ModuleType and call.name not in vars(owner):  # a lazy module gets it from another one
            return
        if self._users:
            self._undo.enter_context(layered(owner, call.name, partial(call.stand_in, self)))

    def _keep(self, family: int, key: bytes, pack: Callable[[Any], Packed], result: Any, took: float) -> None:
        if took < 2 * _READ_S:
            return
        head, parts = pack(result)
        nbytes = len(parts.body) if isinstance(parts, Space) else sum(map(len, parts))
        if took < 2 * (_READ_S + _BYTE_S * nbytes):
            return
        self.tally.add(family, MADE)
        self._calls += 1
        if self._calls % _EVERY == 0:
            self._judge(family)
        if family not in self._idle and self.arena.add(key, head, parts):
            self.tally.add(family, BYTES, nbytes)

    def _judge(self, family: int) -> None:
        """Stop looking at a family that fills the room with what does not recur."""
        made, stored = self.tally.of(family, MADE), self.tally.of(family, BYTES)
        fills = made >= _JUDGED and stored > _UNPROVEN * self.arena.room
        if fills and self.tally.of(family, HITS) < _RECURRING * made:
            self._idle.add(family)


def _noting(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``warnings.warn`` with a note that the call that is being made warns."""

    def warn(message: Any, category: Any = None, stacklevel: int = 1, *more: Any, **others: Any) -> Any:
        _making.warned = True
        return plain(message, category, stacklevel + 2, *more, **others)  # beyond this function and the patch

    return warn


#: Words of a row: for each family, the calls answered from what is kept, the calls made, and the bytes stored.
_WORDS = 3
_ROW = 8 * _WORDS * len(FAMILIES)
#: Processes beyond this number share the row of an ended one.
_ROWS = 512
HITS, MADE, BYTES = range(_WORDS)


class Tally:
    """Counts by family and kind. It may be forked, or sent to spawned workers."""

    def __init__(self, number: int | None = None) -> None:
        if number is None:
            number = os.memfd_create("pipediag-tally")
            os.pwrite(number, bytes(_ROW * (_ROWS + 1)), 0)
        self.number = number
        self._memory = mmap.mmap(number, _ROW * (_ROWS + 1))
        self._words = memoryview(self._memory).cast("q")
        self._process = self._row = 0

    def __del__(self) -> None:
        if "number" in self.__dict__:
            os.close(self.number)

    def __reduce__(self) -> Any:
        return _reopened, (DupFd(self.number),)

    def add(self, family: int, kind: int, number: int = 1) -> None:
        if self._process != os.getpid():
            self._process, self._row = os.getpid(), self._new_row()
        self._words[self._row + _WORDS * family + kind] += number

    def of(self, family: int, kind: int) -> int:
        """Return a count of all processes."""
        rows = min(self._words[0], _ROWS)
        step = _ROW // 8
        return sum(self._words[step * (row + 1) + _WORDS * family + kind] for row in range(rows))

    def _new_row(self) -> int:
        with locked(self.number):
            row = self._words[0]
            os.pwrite(self.number, struct.pack("=q", row + 1), 0)
        return _ROW // 8 * (row % _ROWS + 1)


def _reopened(number: Any) -> Tally:
    return Tally(number.detach())


def layered(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> AbstractContextManager[None]:
    """Replace an attribute by ``make(the present one)`` within the context.

    Do nothing if others have replaced the library's own function already: what theirs does is not known.
    """
    plain = alive(getattr(owner, name, None))
    if plain is None or not _is_the_librarys(plain, owner):
        return nullcontext()
    return replaced(owner, name, wraps(plain)(make(plain)))


def _is_the_librarys(function: Any, owner: Any) -> bool:
    """Return whether a function's code is in the package that has it; True for compiled ones."""
    if not isinstance(function, FunctionType):
        return True
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or "?"
    own = os.path.dirname(file) + os.sep if os.path.basename(file) == "__init__.py" else file
    return not hasattr(function, "__wrapped__") and function.__code__.co_filename.startswith(own)
