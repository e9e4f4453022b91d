"""Streams are tested on the CPU, where everything runs in sequence, on an imagined device, and on a real GPU."""

from __future__ import annotations

import os

from ..devices import device
from .imagined import imagined

__all__ = ["device", "imagined"]

# With fewer queues, two streams may share one, and wait for each other without being told to.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
