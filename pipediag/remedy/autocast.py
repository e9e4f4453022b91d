"""Keeping what is run for a remedy apart from the weights that the loop's autocast keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def casts_made_anew() -> Iterator[None]:
    """Autocast keeps the weights that it has cast until its context ends. Inside, it casts them each time: a graph must
    not read what will be gone then, and the loop must not find what was cast without gradients."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)
