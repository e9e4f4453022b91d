"""Watching torch's operations for a stretch of somebody else's code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode


@contextmanager
def switched_on(mode: TorchDispatchMode) -> Iterator[None]:
    """The mode hears of operations meanwhile.

    The stretch may end in another thread, or under a mode that the code inside has left on. The mode then stays where
    it is, and has to be deaf by itself.
    """
    thread = threading.get_ident()
    mode.__enter__()
    try:
        yield
    finally:
        if threading.get_ident() == thread and _get_current_dispatch_mode() is mode:
            mode.__exit__(None, None, None)
