"""Find the calls of a training loop that make the host wait for the device, while the loop runs.

On request (``torch.cuda.set_sync_debug_mode``) torch warns about its own synchronizing operations; a warning filter
catches these warnings before they are shown. Known suspects are also wrapped, which gives their names and durations,
and finds what torch does not warn about: waiting for a device or an event, and copies from pageable memory that ask for
``non_blocking=True`` in vain. Everything is undone at the end.
"""

from __future__ import annotations

import functools
import linecache
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..clock import Clock, SystemClock
from ..errors import UsageError
from ..frames import is_ours, is_users
from ..patches import replaced
from ..session import SyncCall
from ..usercode.places import short
from . import known_syncs

_SYNCHRONISED = "called a synchronizing CUDA operation"
#: Torch's message when its warnings are switched on.
_PROTOTYPE = "Synchronization debug mode is a prototype feature"
_WARN, _ERROR = 1, 2


@contextmanager
def watch(clock: Clock | None = None) -> Iterator[SyncLog]:
    """Log the calls of this thread that synchronize host and device within the context.

        with syncs.watch() as seen:
            for batch in batches:
                train(batch)
                seen.step()
        for sync in seen.report():
            ...

    Neither values nor warnings of the program change; other threads are not watched. Python code in autograd's own
    threads (hooks) is not seen either; torch's own work there counts for the line that called ``backward()``. Without a
    CUDA device nothing synchronizes and the report is empty. If the program has set the mode ``"error"`` itself, that
    mode stays on, and only what it misses is reported.

    Args:
        clock: for the durations.
    """
    log = SyncLog()
    if not torch.cuda.is_available():
        yield log
        return
    watcher = _Watcher(log, clock or SystemClock())
    with ExitStack() as undoing:
        for owner, name, suspect in known_syncs.suspects():
            undoing.enter_context(replaced(owner, name, _Watched(watcher, getattr(owner, name), suspect)))
        undoing.enter_context(_first_filter(("ignore", watcher, UserWarning, None, 0)))
        undoing.enter_context(_warnings_on(watcher))
        undoing.callback(watcher.stop)
        yield log


class _Watcher:
    """Turns one thread's warnings and wrapped calls into log entries."""

    def __init__(self, log: SyncLog, clock: Clock) -> None:
        self.clock = clock
        self.busy = False  # True during a wrapped call; everything that synchronizes inside belongs to it
        self.warned = 0  # number of torch's warnings so far
        self.shown = False  # True if the program itself has enabled torch's warnings and must see them
        self._log = log
        self._thread: int | None = threading.get_ident()

    def listening(self) -> bool:
        return threading.get_ident() == self._thread

    def stop(self) -> None:
        """Stop listening, also for wrapped functions that are still referenced."""
        self._thread = None

    def match(self, text: str) -> bool:
        """Return whether a warning filter applies to ``text``; stands in for its regular expression."""
        if text.startswith(_PROTOTYPE):
            return True
        if not text.startswith(_SYNCHRONISED):
            return False
        if self.listening():
            self.warned += 1
            if not self.busy:
                frame = sys._getframe(1)
                self.note(frame, *(known_syncs.reading_by_index(frame) or ("", known_syncs.UNKNOWN)), None)
        return not self.shown

    def note(self, frame: types.FrameType | None, call: str, help: str, seconds: float | None) -> None:
        """Log a synchronizing call made from ``frame``; ``call`` is "" if it is not known by name."""
        blamed = _blamed(frame)
        if blamed is None:
            return
        file, number, inside = blamed
        where, line = _text(file, number)
        name = " in ".join(part for part in (call, f"{inside}()" if inside else "") if part)
        self._log.note(name or "a call into torch", where, line, known_syncs.INSIDE.get(inside, help), seconds)


class _Watched:
    """A timed wrapper of a torch function or method. It equals the original, which is a key in tables of handlers."""

    def __init__(self, watcher: _Watcher, native: Callable[..., Any], suspect: known_syncs.Suspect) -> None:
        self._watcher = watcher
        self._native = native
        self._suspect = suspect
        self.__doc__ = native.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The compiler must see only the original; this check is first because the compiler evaluates it while tracing.
        if torch.compiler.is_compiling():
            return self._native(*args, **kwargs)
        watcher = self._watcher
        if watcher.busy or not watcher.listening():
            return self._native(*args, **kwargs)
        watcher.busy, warned, begun = True, watcher.warned, watcher.clock.now()
        try:
            result = self._native(*args, **kwargs)
        finally:
            seconds = watcher.clock.now() - begun
            watcher.busy = False
        with torch._C.DisableTorchFunction():  # our own tensor checks are not calls of the program
            found = self._suspect.found(args, kwargs, result, watcher.warned > warned)
        if found is not None:
            watcher.note(sys._getframe(1), *found, seconds)
        return result

    def __eq__(self, other: object) -> bool:
        return other is self or bool(other == self._native)

    def __hash__(self) -> int:
        return hash(self._native)

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_it_is, (self._native,)  # the original is sent to other processes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


def _as_it_is(native: Any) -> Any:
    return native


def _blamed(frame: types.FrameType | None) -> tuple[str, int, str] | None:
    """Return file and line of the user's code that led to ``frame``, and the library function that it called there.

    The function is "" if the user's code called into torch directly. If the whole loop is a library's, the innermost
    code outside torch counts as the user's. The result is None if pipediag itself made the call.
    """
    inside, second = "", None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_ours(file):
            break
        if is_users(file):
            return file, frame.f_lineno, inside
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if second is None and package != "torch" and package not in sys.stdlib_module_names:
            second = file, frame.f_lineno, inside
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        last = name.rpartition(".")[2]
        # A decorator's wrapper or a private name means nothing to the callers.
        if "<" not in name and (not last.startswith("_") or last.endswith("__")):
            inside = name
        frame = frame.f_back
    return second


@functools.lru_cache(maxsize=1024)
def _text(file: str, number: int) -> tuple[str, str]:
    return f"{short(file)}:{number}", linecache.getline(file, number).strip()


@contextmanager
def _first_filter(item: Any) -> Iterator[None]:
    """Keep a warning filter before all others within the context, including filters that the program adds."""

    def first() -> None:
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        if item in filters:
            filters.remove(item)
        filters.insert(0, item)

    def keeping(native: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(native)
        def change(*args: Any, **kwargs: Any) -> None:
            native(*args, **kwargs)
            first()

        return change

    with ExitStack() as undoing:
        for name in ("simplefilter", "filterwarnings", "resetwarnings"):
            undoing.enter_context(replaced(warnings, name, keeping(getattr(warnings, name))))
        first()
        with warnings.catch_warnings():  # entering and leaving it resets Python's record of warnings already shown
            pass
        try:
            yield
        finally:
            if item in warnings.filters:
                warnings.filters.remove(item)  # type: ignore[attr-defined]


@contextmanager
def _warnings_on(watcher: _Watcher) -> Iterator[None]:
    """Make torch warn about synchronizing operations, unless the program has them raise an error."""
    before = torch.cuda.get_sync_debug_mode()
    watcher.shown = before == _WARN
    if before != _ERROR:
        torch.cuda.set_sync_debug_mode(_WARN)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@dataclass
class _SeenCall:
    line: str
    help: str
    steps: int = 0
    times: int = 0
    timed: int = 0
    seconds: float = 0.0


class SyncLog:
    """A log of synchronizing calls, step by step."""

    def __init__(self) -> None:
        self.steps = 0  # number of finished steps
        self._seen: dict[tuple[str, str], _SeenCall] = {}
        self._open: dict[tuple[str, str], list[float | None]] = {}

    def note(self, call: str, where: str, line: str, help: str, seconds: float | None = None) -> None:
        """Record one call in the open step; ``seconds`` is the host time spent in it, or None if unknown."""
        key = call, where
        self._seen.setdefault(key, _SeenCall(line, help))
        self._open.setdefault(key, []).append(seconds)

    def step(self) -> None:
        """Finish the step: later calls belong to the next one."""
        for key, calls in self._open.items():
            seen, timed = self._seen[key], [seconds for seconds in calls if seconds is not None]
            seen.steps += 1
            seen.times += len(calls)
            seen.timed += len(timed)
            seen.seconds += sum(timed)
        self._open.clear()
        self.steps += 1

    def report(self, least: float = 0.5) -> list[SyncCall]:
        """Return the calls that happen in (nearly) every step, the most expensive first, then those of unknown cost.

        Occasional calls, such as reading the loss every hundred steps, cost little and are left out, as are calls after
        the last :meth:`step`.

        Args:
            least: minimum share of the steps (0 to 1) in which a call happens.

        Raises:
            UsageError: no step has been finished.
        """
        if not self.steps:
            raise UsageError("no step was seen: call step() at the end of each training step, then ask for the report")
        found = []
        for (call, where), seen in self._seen.items():
            if seen.steps and seen.steps >= least * self.steps:
                ms = 1000 * seen.seconds / self.steps if seen.timed == seen.times else None
                found.append(SyncCall(call, where, seen.line, seen.times / self.steps, ms, seen.help))

        def rank(one: SyncCall) -> tuple[bool, float, float, str, str]:
            return one.ms_per_step is None, -(one.ms_per_step or 0.0), -one.per_step, one.where, one.call

        return sorted(found, key=rank)
