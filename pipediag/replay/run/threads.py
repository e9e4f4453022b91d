"""Limit the number of threads for trials in the training process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def as_in_a_worker() -> Iterator[None]:
    """Use one thread for torch's operators inside the context, as every ``DataLoader`` worker does.

    Results made inside are compared with workers' results. Also, tensors as small as samples gain little from more
    threads: on cores that other processes need too, the threads wait for each other many times longer than they work.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
