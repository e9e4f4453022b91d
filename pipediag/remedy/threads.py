"""How many threads work on what is tried in the training process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def as_in_a_worker() -> Iterator[None]:
    """One thread for torch's operators inside, as every worker of a ``DataLoader`` has.

    What is made inside is held against workers' results. And tensors as small as samples gain little from more threads,
    which, on cores that other processes need too, wait for each other many times longer than they work.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
