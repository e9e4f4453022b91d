"""Finding the calls of a training loop that make the host wait for the device, while the loop runs.

What tells: torch warns of its own synchronising operations when it is asked to (``torch.cuda.set_sync_debug_mode``);
a warning filter takes those warnings out before anybody sees them. The usual suspects are also wrapped, which gives
their names and durations, and finds what torch does not warn of: waiting for a device or an event, and copies from
pageable memory that ask for ``non_blocking=True`` in vain. All of it is undone at the end.
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
from typing import Any

import torch

from ..frames import is_ours
from ..usercode.places import is_users, short
from . import suspects
from .clock import Clock, SystemClock
from .synclog import SyncLog

_SYNCHRONISED = "called a synchronizing CUDA operation"
#: What torch says of its own accord when the warnings are switched on.
_PROTOTYPE = "Synchronization debug mode is a prototype feature"
_WARN, _ERROR = 1, 2


@contextmanager
def watch(clock: Clock | None = None) -> Iterator[SyncLog]:
    """Note the calls of this thread that synchronise host and device, as long as the context lasts.

        with syncs.watch() as seen:
            for batch in batches:
                train(batch)
                seen.step()
        for sync in seen.report():
            ...

    Neither values nor warnings of the program change; other threads go about their business unseen. What Python runs
    in autograd's own threads (hooks) is not seen either; what torch itself does there counts for the line that called
    ``backward()``. Where there is no CUDA device nothing synchronises: the report is empty. The same goes for a program
    that has set the mode ``"error"`` itself, which is left on, but for what that mode misses.

    Args:
        clock: for the durations.
    """
    log = SyncLog()
    if not torch.cuda.is_available():
        yield log
        return
    watcher = _Watcher(log, clock or SystemClock())
    with ExitStack() as undoing:
        for owner, name, suspect in suspects.suspects():
            undoing.enter_context(_replaced(owner, name, _Watched(watcher, getattr(owner, name), suspect)))
        undoing.enter_context(_first_filter(("ignore", watcher, UserWarning, None, 0)))
        undoing.enter_context(_warnings_on(watcher))
        undoing.callback(watcher.stop)
        yield log


class _Watcher:
    """Turns warnings and wrapped calls of one thread into notes.

    Attributes:
        busy: a wrapped call is going on; whatever synchronises inside belongs to it.
        warned: how often torch has warned so far.
        shown: whether the program had asked for torch's warnings itself, and so is to see them.
    """

    def __init__(self, log: SyncLog, clock: Clock) -> None:
        self.clock = clock
        self.busy = False
        self.warned = 0
        self.shown = False
        self._log = log
        self._thread: int | None = threading.get_ident()

    def listening(self) -> bool:
        return threading.get_ident() == self._thread

    def stop(self) -> None:
        """Hear no more, also from wrapped functions that somebody has kept."""
        self._thread = None

    def match(self, text: str) -> bool:
        """Stands for the regular expression in a warning filter: whether it applies to a warning."""
        if text.startswith(_PROTOTYPE):
            return True
        if not text.startswith(_SYNCHRONISED):
            return False
        if self.listening():
            self.warned += 1
            if not self.busy:
                self.note(sys._getframe(1), "", suspects.UNKNOWN, None)
        return not self.shown

    def note(self, frame: types.FrameType | None, call: str, help: str, seconds: float | None) -> None:
        """A synchronising call made from ``frame``; an empty ``call`` is one that is not known by name."""
        blamed = _blamed(frame)
        if blamed is None:
            return
        file, number, inside = blamed
        where, line = _text(file, number)
        name = " in ".join(part for part in (call, f"{inside}()" if inside else "") if part)
        self._log.note(name or "a call into torch", where, line, suspects.INSIDE.get(inside, help), seconds)


class _Watched:
    """A function or method of torch's that is timed. It equals the original, which is a key in tables of handlers."""

    def __init__(self, watcher: _Watcher, native: Callable[..., Any], suspect: suspects.Suspect) -> None:
        self._watcher = watcher
        self._native = native
        self._suspect = suspect
        self.__doc__ = native.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The compiler is to see the original alone; this comes first because it evaluates it while tracing.
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
        with torch._C.DisableTorchFunction():  # looking at tensors is no call of the program's
            found = self._suspect.found(args, kwargs, result, watcher.warned > warned)
        if found is not None:
            watcher.note(sys._getframe(1), *found, seconds)
        return result

    def __eq__(self, other: object) -> bool:
        return other is self or bool(other == self._native)

    def __hash__(self) -> int:
        return hash(self._native)

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_it_is, (self._native,)  # what travels to another process is the original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


def _as_it_is(native: Any) -> Any:
    return native


def _blamed(frame: types.FrameType | None) -> tuple[str, int, str] | None:
    """File and line of the user's code that a frame was called from, and the library's function that it called there.

    The function is empty where the user's code called into torch itself. Where a loop is a library's altogether, the
    innermost code outside torch counts as the user's. None where pipediag itself is behind it.
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
        if not _is_wrapping(name):
            inside = name
        frame = frame.f_back
    return second


def _is_wrapping(name: str) -> bool:
    """Whether a function's name means nothing to its callers: that of a decorator's wrapper, or a private one."""
    last = name.rpartition(".")[2]
    return "<" in name or (last.startswith("_") and not last.endswith("__"))


@functools.lru_cache(maxsize=1024)
def _text(file: str, number: int) -> tuple[str, str]:
    return f"{short(file)}:{number}", linecache.getline(file, number).strip()


@contextmanager
def _replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    """Put something in the place of an attribute; an inherited one is shadowed and comes to light again."""
    own = name in vars(owner)
    native = vars(owner).get(name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, native)
        else:
            delattr(owner, name)


@contextmanager
def _first_filter(item: Any) -> Iterator[None]:
    """Keep a warning filter before all others, also before those that the program adds meanwhile."""

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
            undoing.enter_context(_replaced(warnings, name, keeping(getattr(warnings, name))))
        first()
        with warnings.catch_warnings():  # entering and leaving it makes Python forget what has been shown once
            pass
        try:
            yield
        finally:
            if item in warnings.filters:
                warnings.filters.remove(item)  # type: ignore[attr-defined]


@contextmanager
def _warnings_on(watcher: _Watcher) -> Iterator[None]:
    """Have torch warn of operations that synchronise, unless the program has them raise an error."""
    before = torch.cuda.get_sync_debug_mode()
    watcher.shown = before == _WARN
    if before != _ERROR:
        torch.cuda.set_sync_debug_mode(_WARN)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
