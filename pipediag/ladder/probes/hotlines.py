"""Find the lines that take the time of making samples: a thread looks now and then at the line that runs.

It looks while a batch is made and paces itself by what it costs. A look counts for the innermost line of the user's
own code, so that a library's time is that of the line that calls it. Where none of the user's code runs, as in a
library's dataset class, it counts for the innermost line of the library that the dataset belongs to.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType

from ...frames import in_package, is_ours, is_torchs, is_users
from ...session import HotLine
from ...usercode.lines import line_at

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
#: Number of lines reported one by one.
_LINES = 40
#: Number of frames, from the innermost on, among which the function that makes samples must be.
_DEPTH = 200

#: A stack from the innermost frame outwards: code and instruction of each.
_Stack = Sequence[tuple[CodeType, int]]


class HotLines:
    """The lines at which samples were made, by the seconds that each took.

    ``makers`` are pipediag's functions that call the dataset's code: what runs elsewhere is no sample.

    Attributes:
        looks: number of looks that counted.
        own: seconds that the looks took of the batches.
    """

    def __init__(self, makers: Collection[CodeType], clock: Callable[[], float] = time.perf_counter) -> None:
        self._makers = frozenset(map(id, makers))
        self._clock = clock
        self._seconds: dict[tuple[int, ...], float] = {}
        self._codes: dict[int, CodeType] = {}
        self._ours: dict[int, bool] = {}
        self._chance = random.Random(0)
        self._reported = 0
        self._taken = 0.0
        self._lock = threading.Lock()
        self._at_work = threading.Event()
        self._watched = 0  # the thread that makes a batch; 0 if none does
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self.looks = 0
        self.own = 0.0

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
        before = self._clock()
        while self.looks < LOOKS and not self._closed.is_set():
            if not self._at_work.is_set():
                if not self._at_work.wait(_IDLE) and self._ended():
                    return
                self.own += _HAND_OVER
                before = self._clock()
            self._closed.wait(self._chance.uniform(0.5, 1.5) * self._pause())  # no multiple of a sample's time
            now = self._clock()
            if (watched := self._watched) and not self._closed.is_set():
                self.look(watched, now - before)
                self.own += self._clock() - now + _HAND_OVER
            before = self._clock()

    def _ended(self) -> bool:
        """Return whether there is still nothing to look at: the thread then ends, and another begins when there is."""
        with self._lock:
            if self._at_work.is_set():
                return False
            self._thread = None
            return True

    def _pause(self) -> float:
        each = self.own / self.looks if self.looks else 0.0
        return min(_LONGEST, max(_PAUSE, each / _SHARE))

    def look(self, thread: int, seconds: float) -> None:
        """Look at a thread once, for the seconds since the last look: C code may have held the lock all the while."""
        frame, stack = sys._current_frames().get(thread), list[int]()
        if frame is None or self._is_ours(frame.f_code):
            return
        while frame is not None and len(stack) < 2 * _DEPTH:
            code = frame.f_code
            if id(code) in self._makers:
                key = tuple(stack)
                self._seconds[key] = self._seconds.get(key, 0.0) + seconds
                self.looks += 1
                return
            if not self._is_ours(code):
                stack += id(code), frame.f_lasti
            frame = frame.f_back

    def _is_ours(self, code: CodeType) -> bool:
        if id(code) not in self._codes:
            self._codes[id(code)] = code  # keeps its id its own
            self._ours[id(code)] = is_ours(code.co_filename)
        return self._ours[id(code)]

    def figures(self, transforms: Collection[CodeType]) -> list[HotLine]:
        """Return the lines by their share of the time; ``transforms`` are the functions that the transforms run.

        If there are very many, those of little time come together, without a place.
        """
        self._reported = self.looks
        found, known = dict[tuple[str, str], HotLine](), frozenset(map(id, transforms))
        seconds = {key: value for key, value in list(self._seconds.items()) if key}
        total = sum(seconds.values())
        # The instruction that takes most of a line comes first and names what the line calls.
        for key, value in sorted(seconds.items(), key=lambda item: item[1], reverse=True):
            stack = [(self._codes[key[n]], key[n + 1]) for n in range(0, len(key), 2)]
            stage = "transform" if any(id(code) in known for code, _ in stack) else "load"
            code, instruction = stack[_innermost(stack)]
            line, library = line_at(code, instruction), not _is_users(code.co_filename)
            one = HotLine(line.where, line.text, 0.0, line.calls, line.function, stage, library)
            one = found.setdefault((line.where, stage), one)
            one.share += value / total
        ranked = sorted(found.values(), key=lambda line: line.share, reverse=True)
        lines = ranked[:_LINES]
        for stage in ("load", "transform"):
            rest = [line for line in ranked[_LINES:] if line.stage == stage]
            if rest:
                lines.append(HotLine("", "", sum(line.share for line in rest), stage=stage))
        return [replace(line, share=round(line.share, 4)) for line in lines]


def _innermost(stack: _Stack) -> int:
    """Return which frame of a stack the time counts for."""
    files = [code.co_filename for code, _ in stack]
    users = next((n for n, file in enumerate(files) if _is_users(file)), None)
    if users is not None:
        return users
    owner = next((_package(file) for file in reversed(files) if not is_torchs(file)), "torch")
    return next((n for n, file in enumerate(files) if _package(file) == owner), 0)


@functools.cache
def _is_users(file: str) -> bool:
    return is_users(file)


@functools.cache
def _package(file: str) -> str:
    return in_package(file).replace("\\", "/").partition("/")[0]
