"""Streams are tested on the CPU, where everything runs in sequence, on an imagined device, and on a real GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from ..devices import device
from .endings import assert_nothing_left, take_stock
from .imagined import imagined

__all__ = ["device", "imagined"]

# With fewer queues, two streams may share one, and wait for each other without being told to.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@pytest.fixture
def gpu() -> torch.device:
    """The device, for tests marked with ``GPU``."""
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """No test leaves a fetching thread or a worker behind."""
    take_stock()
    yield
    assert_nothing_left()
