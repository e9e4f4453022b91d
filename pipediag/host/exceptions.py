"""Treat the script's exceptions as Python would: in every thread, with their cause, without pipediag's frames."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TypeVar

from ..clock import time
from ..frames import in_one_line, traceback_of, users_part
from ..patches import replaced
from .standard_streams import tell

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def script_hook() -> Hook:
    """Return a hook that hides pipediag's frames and calls the present ``sys.excepthook``.

    If that is missing or fails, the hook says so and shows the exception, as Python does.
    """
    own: Hook | None = getattr(sys, "excepthook", None)
    missing = not hasattr(sys, "excepthook")

    def show(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        users_part(BaseException.with_traceback(error, tb))
        if missing:
            tell("sys.excepthook is missing")
            _show(error)
            return
        try:
            own(kind, error, traceback_of(error))  # type: ignore[misc]  # None fails here as it does in Python
        except SystemExit:
            raise
        except BaseException as failure:
            failure.__context__ = None
            tell("Error in sys.excepthook:")
            _show(users_part(failure))
            tell("\nOriginal exception was:")
            _show(error)

    return show


def _show(error: BaseException) -> None:
    sys.__excepthook__(type(error), error, traceback_of(error))


E = TypeVar("E", bound=BaseException)


@contextmanager
def raised_in_threads(kind: type[E], end: Callable[[E], None]) -> Iterator[None]:
    """Call ``end`` within the context when an exception of this kind ends another thread than the main one.

    A script may draw its batches in a thread of its own. The exception would end only that, with a traceback, and the
    main thread would wait for its batches for ever.
    """
    native = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if isinstance(args.exc_value, kind):
            end(args.exc_value)
        else:
            native(args)

    with replaced(threading, "excepthook", hook):
        yield


@contextmanager
def dropped_by_python(kind: type[E], end: Callable[[E], None]) -> Iterator[None]:
    """Call ``end`` soon, in another thread, when Python drops an exception of this kind within the context.

    A signal's handler may raise it in a callback of a weak reference or in a ``__del__``, from which none gets out.
    """
    native, soon = sys.unraisablehook, ExitStack()

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, kind):
            timer = threading.Timer(_SOON, end, [dropped.exc_value])
            soon.callback(timer.cancel)
            timer.start()
        else:
            native(dropped)

    with replaced(sys, "unraisablehook", hook), soon:
        yield


#: Seconds in which Python leaves a callback.
_SOON = 0.01
#: The method of torch's iterator in which it waits for its workers' batches, and reads them.
_READS = "_try_get_data"
#: Seconds that workers have to end once their connections are closed.
_ENDING = 1.0


def cause_of(error: BaseException) -> BaseException:
    """Return the error that says how a worker died, if one did; otherwise ``error`` itself.

    torch raises another error from that one. If a worker dies while its batch is read, torch raises what the reading
    failed with, such as EOFError; the worker's exit code then says how it died.
    """
    if "exited unexpectedly" in in_one_line(error):
        return error.__cause__ or error
    for frame, _ in traceback.walk_tb(traceback_of(error)):
        if frame.f_code.co_name == _READS:
            until = time.monotonic() + _ENDING
            for worker in getattr(frame.f_locals.get("self"), "_workers", ()):
                worker.join(max(0.0, until - time.monotonic()))
                if code := worker.exitcode:  # said in torch's words
                    died = f"exited unexpectedly with exit code {code}"
                    if code < 0:
                        died = f"is killed by signal: {signal.strsignal(-code) or f'signal {-code}'}."
                    return RuntimeError(f"DataLoader worker (pid {worker.pid}) {died}")
    return error
