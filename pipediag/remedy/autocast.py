"""Keep the weights that a remedy casts out of the training loop's autocast cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def casts_made_anew() -> Iterator[None]:
    """Disable autocast's cache of cast weights inside the context. A CUDA graph must not read cached weights that are
    freed when autocast ends, and the loop must not find weights that were cast without gradients."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)
