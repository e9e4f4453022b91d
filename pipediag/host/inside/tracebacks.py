"""Show the script's uncaught exceptions as Python would, without pipediag's frames."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from ...frames import users_part

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def script_hook() -> Hook:
    """Return a hook that hides pipediag's frames and calls the present ``sys.excepthook``.

    If that is missing or fails, the hook says so and shows the exception, as Python does.
    """
    own: Hook | None = getattr(sys, "excepthook", None)
    missing = not hasattr(sys, "excepthook")

    def show(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        users_part(error.with_traceback(tb))
        if missing:
            _say("sys.excepthook is missing")
            _show(error)
            return
        try:
            own(kind, error, error.__traceback__)  # type: ignore[misc]  # None fails here as it does in Python
        except SystemExit:
            raise
        except BaseException as failure:
            failure.__context__ = None
            _say("Error in sys.excepthook:")
            _show(users_part(failure))
            _say("\nOriginal exception was:")
            _show(error)

    return show


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(error: BaseException) -> None:
    sys.__excepthook__(type(error), error, error.__traceback__)
