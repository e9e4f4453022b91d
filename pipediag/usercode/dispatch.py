"""Watch torch's operations during other code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode


@contextmanager
def switched_on(mode: TorchDispatchMode) -> Iterator[None]:
    """Enable the mode within the context.

    The context may end in another thread, or under a mode that the code inside has left enabled. The mode then stays
    enabled and has to ignore operations itself.
    """
    thread = threading.get_ident()
    mode.__enter__()
    try:
        yield
    finally:
        if threading.get_ident() == thread and _get_current_dispatch_mode() is mode:
            mode.__exit__(None, None, None)
