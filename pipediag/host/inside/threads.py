"""Let an exception that ends the script end it from any of its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ...patches import replaced

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
