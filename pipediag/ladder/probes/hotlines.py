"""Find the lines that take the time of making a sample: the user's own lines first, else library functions.

A line tracer is used rather than a function profiler because a transform is often a single function, and the ladder
already shows that it is slow. Only frames of the user's files are traced, so that library code runs at full speed; its
time counts for the line that calls it.
"""

from __future__ import annotations

import cProfile
import linecache
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ...frames import is_users
from ...session import HotLine
from ...usercode.places import short

#: Maximum number of traced samples, and seconds after which no further one is traced.
TRACED, _SECONDS = 4, 0.5
#: Number of lines named, and the minimum share of the time of each.
_LINES, _SHARE = 5, 0.05
#: If the user's own files take less than this share of the time, library functions are named as well.
_EXPLAINED = 0.5


class HotLines:
    """A tracer of single samples that ranks the lines."""

    def __init__(self, most: int = TRACED) -> None:
        self._most = most
        self._tracer = _LineTracer()
        self._functions: list[HotLine] = []
        self._traced = 0
        # A debugger or a coverage tool already holds the only slot for a tracer.
        self.complete = sys.gettrace() is not None or sys.getprofile() is not None or _another_profiler()

    def trace(self, make: Callable[[], Any]) -> Any:
        """Make one sample under the tracer; make the last one under a profiler if the lines explain too little."""
        if self._traced >= self._most or self._tracer.total > _SECONDS:
            self.complete = True
            return self._profiled(make) if self._tracer.explained < _EXPLAINED else make()
        self._traced += 1
        with self._tracer:
            return make()

    def _profiled(self, make: Callable[[], Any]) -> Any:
        profile = cProfile.Profile()
        try:
            return profile.runcall(make)
        finally:
            self._functions = _functions(profile)

    def figures(self) -> list[HotLine]:
        lines = self._tracer.lines() + self._functions
        return [line for line in lines if line.share >= _SHARE][:_LINES]


def _another_profiler() -> bool:
    """Return whether a profiler that uses ``sys.monitoring`` (Python 3.12) is active."""
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.PROFILER_ID) is not None


class _LineTracer:
    """A tracer that charges time to the running line of the user's innermost frame."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], float] = {}
        self._current: list[tuple[str, int]] = []
        self._known: dict[str, bool] = {}
        self._last = 0.0
        self._began = 0.0
        self.total = 0.0

    def __enter__(self) -> _LineTracer:
        self._began = self._last = time.perf_counter()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self.total += time.perf_counter() - self._began
        self._current.clear()

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in self._known:
            self._known[file] = is_users(file)
        if not self._known[file]:
            return None
        self._charge()
        self._current.append((file, frame.f_lineno))
        return self._in_users_frame

    def _in_users_frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._charge()
            if self._current:
                self._current[-1] = (frame.f_code.co_filename, frame.f_lineno)
        elif event == "return":
            self._charge()
            if self._current:
                self._current.pop()
        return self._in_users_frame

    def _charge(self) -> None:
        """Charge the time since the last event to the line that was running."""
        if self._current:
            line = self._current[-1]
            self._seconds[line] = self._seconds.get(line, 0.0) + time.perf_counter() - self._last
        self._last = time.perf_counter()

    @property
    def explained(self) -> float:
        """Share of the time spent on the user's lines."""
        return sum(self._seconds.values()) / self.total if self.total else 0.0

    def lines(self) -> list[HotLine]:
        ranked = sorted(self._seconds.items(), key=lambda item: item[1], reverse=True)
        return [
            HotLine(f"{short(file)}:{line}", linecache.getline(file, line).strip(), round(seconds / self.total, 4))
            for (file, line), seconds in ranked[: 2 * _LINES]
        ]


def _functions(profile: cProfile.Profile) -> list[HotLine]:
    """Return the library functions that take the most time themselves."""
    profile.create_stats()
    stats: dict[tuple[str, int, str], tuple[Any, ...]] = profile.stats  # type: ignore[attr-defined,unused-ignore]
    total = sum(entry[2] for entry in stats.values())
    found = []
    for (file, line, name), entry in sorted(stats.items(), key=lambda item: item[1][2], reverse=True)[:_LINES]:
        if total > 0 and not is_users(file):
            where = "" if file in ("~", "") or file.startswith("<") else f"{short(file)}:{line}"
            found.append(HotLine(where, name, round(entry[2] / total, 4)))
    return found
