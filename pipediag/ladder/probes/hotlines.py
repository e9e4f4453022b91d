"""Find the lines that take the time of making a batch: a thread looks now and then at the line that runs.

It looks while a batch is made and paces itself by what it costs. A look counts for the innermost line of the user's
own code, so that a library's time is that of the line that calls it. Where none of the user's code runs, as in a
library's dataset class, it counts for the innermost line of the library that the dataset belongs to. The functions
of libraries that run below the line are counted with it: they say what it does, which its text does not.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ...clock import time
from ...frames import in_package, is_ours, is_torchs, is_users
from ...session import HotLine
from ...usercode.lines import Line, begin_of_line, begins, compiled_function, function_of, line_at
from .stacks import At, running, stack_of
from .waited_for import waits, working_for

#: Number of looks after which no batch is looked at any more: a share of a half is then known to 5 points.
LOOKS = 400
#: Number of looks that are worth a report of their own.
_FEW = 8
#: Mean seconds between two looks at least and at most; in between, as many as ``_SHARE`` of the time affords.
_PAUSE, _LONGEST = 0.004, 0.05
#: Maximum share of a worker's time, and seconds that may be spent in any case.
_SHARE, _ALLOWANCE = 0.005, 0.02
#: What waking up costs: the thread that makes the batch hands the interpreter's lock over and takes it back.
_HAND_OVER = 20e-6
#: Seconds after which a thread that runs Python code hands the lock over while it is looked at. The usual 5 ms are
#: longer than many a line: its time would count for a later line, one that waits or computes without the lock.
_SWITCH = 1e-4
#: Seconds without a batch after which the looking thread ends.
_IDLE = 0.5
#: Number of lines reported one by one, and of functions below each; such a function takes this share of its line.
_LINES, _CALLS, _CALLED = 40, 8, 0.1
#: Number of frames, from the innermost on, among which the function that makes samples must be.
_DEPTH = 200
#: How files of modules in the interpreter begin, and of the methods that it writes for dataclasses: what they do, as
#: for isinstance(), is their caller's.
_FROZEN = ("<frozen ", "<string>")

#: A stack from the innermost frame outwards: code and instruction of each.
_Stack = Sequence[tuple[CodeType, int]]


@dataclass
class _Timed:
    """The seconds of a line, of each transform that ran it, and of each library function below it with its depth."""

    line: Line
    stage: str
    library: bool
    seconds: float = 0.0
    below: dict[str, tuple[float, int]] = field(default_factory=dict)
    transforms: dict[str, float] = field(default_factory=dict)

    def add(self, seconds: float, functions: Sequence[str], transform: str) -> None:
        self.seconds += seconds
        if transform:
            self.transforms[transform] = self.transforms.get(transform, 0.0) + seconds
        for depth, name in enumerate(dict.fromkeys(functions)):
            before, least = self.below.get(name, (0.0, depth))
            self.below[name] = before + seconds, min(depth, least)

    def share_of(self, total: float) -> HotLine:
        most = sorted(self.below.items(), key=lambda item: item[1][0], reverse=True)[:_CALLS]
        kept = sorted((depth, name, seconds) for name, (seconds, depth) in most if seconds >= _CALLED * self.seconds)
        calls = {name: round(seconds / total, 4) for _, name, seconds in kept}
        transforms = {name: round(seconds / total, 4) for name, seconds in self.transforms.items()}
        one, share = self.line, round(self.seconds / total, 4)
        return HotLine(one.where, one.text, share, one.calls, one.function, self.stage, self.library, calls, transforms)


class HotLines:
    """The lines at which batches were made, by the seconds that each took.

    ``makers`` are pipediag's functions that call the dataset's code, ``collating`` those that call the collate
    function: what runs elsewhere makes no batch.
    """

    def __init__(self, makers: Collection[CodeType], collating: Collection[CodeType] = ()) -> None:
        self._makers = frozenset(map(id, makers))
        self._collating = frozenset(map(id, collating))
        self._seconds: dict[tuple[bool, tuple[int, ...]], float] = {}  # by whether it collates, and by the stack
        self._codes: dict[int, CodeType] = {}
        self._scopes: dict[int, dict[str, Any]] = {}  # the globals of the innermost frames' code
        self._lines: dict[tuple[int, int], Line] = {}
        self._functions: dict[int, str] = {}
        self._ours: dict[int, bool] = {}
        self._chance = random.Random(0)
        self._reported = 0
        self._taken = 0.0
        self._lock = threading.Lock()
        self._at_work = threading.Event()
        self._watched = 0  # the thread that makes a batch; 0 if none does
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self.looks = 0  # number of looks that counted
        self.own = 0.0  # seconds that the looks took of the batches

    def affordable(self, busy: float) -> bool:
        """Return whether to look at another batch after ``busy`` seconds of work: too few looks yet, and cheap ones."""
        return self.looks < LOOKS and self.own <= max(_ALLOWANCE, _SHARE * busy)

    @property
    def news(self) -> bool:
        """True if there are many more looks than when the lines were last reported, or all."""
        return self.looks > self._reported and self.looks >= min(LOOKS, max(_FEW, 2 * self._reported))

    def taken(self) -> float:
        """Return the seconds that the looks took since this was asked last."""
        before, self._taken = self._taken, self.own
        return self._taken - before

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the calling thread within the context."""
        before = sys.getswitchinterval()
        with self._lock:
            self._watched = threading.get_ident()
            self._at_work.set()
            if self._thread is None or not self._thread.is_alive():  # a forked process has none
                self._thread = threading.Thread(target=self._run, name="pipediag-lines", daemon=True)
                self._thread.start()
        sys.setswitchinterval(_SWITCH)
        try:
            yield
        finally:
            sys.setswitchinterval(before)
            self._watched = 0
            self._at_work.clear()

    def close(self) -> None:
        """End the thread that looks, and wait for its end."""
        self._closed.set()
        self._at_work.set()
        if (thread := self._thread) is not None:
            thread.join()

    def _run(self) -> None:
        """Look until there are enough looks, or nothing to look at for a while."""
        before = time.perf_counter()
        while self.looks < LOOKS and not self._closed.is_set():
            if not self._at_work.is_set():
                if not self._at_work.wait(_IDLE) and self._ended():
                    return
                self.own += _HAND_OVER
                before = time.perf_counter()
            self._closed.wait(self._chance.uniform(0.5, 1.5) * self._pause())  # no multiple of a sample's time
            now = time.perf_counter()
            if (watched := self._watched) and not self._closed.is_set():
                self.look(watched, now - before)
                self.own += time.perf_counter() - now + _HAND_OVER
            before = time.perf_counter()

    def _ended(self) -> bool:
        """Return whether there is still nothing to look at: the thread then ends, and another begins when there is."""
        with self._lock:
            if self._at_work.is_set():
                return False
            self._thread = None
            return True

    def _pause(self) -> float:
        if self.own < _ALLOWANCE:  # short scripts need all the looks that they can get
            return _PAUSE
        return min(_LONGEST, max(_PAUSE, self.own / max(1, self.looks) / _SHARE))

    def look(self, thread: int, seconds: float) -> None:
        """Look at a thread once, for the seconds since the last look: C code may have held the lock all the while."""
        stack = [*itertools.dropwhile(lambda at: at[0].co_filename.startswith(_FROZEN), stack_of(thread, _DEPTH))]
        if not stack or self._is_ours(stack[0][0]):
            return
        for n, (code, _, _) in enumerate(stack):
            if id(code) in self._makers or id(code) in self._collating:
                # What it waits for is made by threads of the user's: the time is theirs.
                others = working_for(thread, running()) if waits(stack) else []
                for one in others or [stack[:n]]:
                    self._add(id(code) in self._collating, one[:_DEPTH], seconds / max(1, len(others)))
                self.looks += 1
                return
            if self._is_ours(code) and n and stack[n - 1][0].co_filename == contextlib.__file__:
                return  # a context of pipediag's begins or ends

    def _add(self, collates: bool, stack: Sequence[At], seconds: float) -> None:
        key = list[int]()
        for code, instruction, _ in stack:
            if not self._is_ours(code):
                key += id(code), instruction
        self._seconds[collates, tuple(key)] = self._seconds.get((collates, tuple(key)), 0.0) + seconds
        if stack:
            self._scopes[id(stack[0][0])] = stack[0][2]

    def _is_ours(self, code: CodeType) -> bool:
        if id(code) not in self._codes:
            self._codes[id(code)] = code  # keeps its id its own
            self._ours[id(code)] = is_ours(code.co_filename)
        return self._ours[id(code)]

    def figures(self, transforms: Collection[CodeType], names: Collection[str] = ()) -> list[HotLine]:
        """Return the lines by their share of the time; ``transforms`` are the functions that the transforms run.

        ``names`` are the transforms' names: a line belongs to the innermost of them that is on its stack.

        If there are very many, those of little time come together, without a place. Of collating, only the user's own
        lines are returned.
        """
        self._reported = self.looks
        found, known = dict[tuple[str, str], _Timed](), frozenset(map(id, transforms))
        totals, seconds = {True: 0.0, False: 0.0}, self._seconds.copy()  # the looking thread adds to it
        stacks = {key: _at_work(self._stack(key)) for _, key in seconds}
        counts = {key: _innermost(stack) for key, stack in stacks.items() if stack}
        spent: dict[tuple[CodeType, int], float] = {}
        for (_, key), value in seconds.items():
            if key in counts:
                place = stacks[key][counts[key]]
                spent[place] = spent.get(place, 0.0) + value
        seen = [(collates, key) for collates, key in seconds if key in counts]
        # The instruction that takes most of a line comes first and names what the line calls.
        for collates, key in sorted(seen, key=lambda one: spent[stacks[one[1]][counts[one[1]]]], reverse=True):
            stack, at, value = stacks[key], counts[key], seconds[collates, key]
            totals[collates] += value
            library, line = not _is_users(stack[at][0].co_filename), self._line(*stack[at])
            if collates and library:
                continue
            stage = "transform" if any(id(code) in known for code, _ in stack) else "load"
            stage = "collate" if collates else stage
            one = found.setdefault((line.where, stage), _Timed(line, stage, library))
            owners = (_owner(code) for code, _ in stack) if stage == "transform" else ()
            one.add(value, self._below(stack[: at + 1]), next((name for name in owners if name in names), ""))
        ranked = sorted(found.values(), key=lambda one: one.seconds, reverse=True)
        lines = [one.share_of(totals[one.stage == "collate"]) for one in ranked]
        rest = lines[_LINES:]
        shares = {stage: sum(line.share for line in rest if line.stage == stage) for stage in ("load", "transform")}
        together = [HotLine("", "", round(share, 4), stage=stage) for stage, share in shares.items() if share]
        return lines[:_LINES] + together

    def _stack(self, key: tuple[int, ...]) -> list[tuple[CodeType, int]]:
        return [(self._codes[key[n]], key[n + 1]) for n in range(0, len(key), 2)]

    def _below(self, stack: _Stack) -> list[str]:
        """Return the functions that run below a line, the outer ones first: the stack's last frame is the line's."""
        code, instruction = stack[0]
        compiled = compiled_function(self._line(code, instruction).calls, self._scopes.get(id(code), {}))
        return [*filter(None, (*(self._function(code) for code, _ in reversed(stack[:-1])), compiled))]

    def _function(self, code: CodeType) -> str:
        if id(code) not in self._functions:
            self._functions[id(code)] = function_of(code)
        return self._functions[id(code)]

    def _line(self, code: CodeType, instruction: int) -> Line:
        if (id(code), instruction) not in self._lines:
            self._lines[id(code), instruction] = line_at(code, instruction)
        return self._lines[id(code), instruction]


def _at_work(stack: list[tuple[CodeType, int]]) -> list[tuple[CodeType, int]]:
    """Return the stack without a function that has only begun: what held the interpreter's lock until then was code
    of its caller, of the calling line or of one before it. What the line calls has no part in that."""
    if len(stack) < 2 or not begins(*stack[0]) or not _is_users(stack[1][0].co_filename):
        return stack
    (code, instruction), *outer = stack[1:]
    return [(code, begin_of_line(code, instruction)), *outer]


def _innermost(stack: _Stack) -> int:
    """Return which frame of a stack the time counts for."""
    files = [code.co_filename for code, _ in stack]
    users = next((n for n, file in enumerate(files) if _is_users(file)), None)
    if users is not None:
        return users
    owner = next((_package(file) for file in reversed(files) if not is_torchs(file)), "torch")
    return next((n for n, file in enumerate(files) if _package(file) == owner), 0)


def _owner(code: CodeType) -> str:
    """Return the class of a method, or the name of a function; before Python 3.11 a method's own name."""
    return getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2].partition(".")[0]


@functools.cache
def _is_users(file: str) -> bool:
    return is_users(file)


@functools.cache
def _package(file: str) -> str:
    return in_package(file).replace("\\", "/").partition("/")[0]
