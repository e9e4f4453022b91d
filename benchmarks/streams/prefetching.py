"""Prefetchers of other libraries: their own if the library is installed, else their pattern.

Each takes batches of two host tensors and gives them on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]
Prefetcher = Callable[[Iterable[Batch], torch.device], Iterator[Batch]]


def copied(loader: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Run the plain loop: copy a batch when it is due; with pinned memory the host does not wait for the copy."""
    for images, labels in loader:
        yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def torchtnt_prefetcher() -> tuple[str, Prefetcher]:
    """Return torchtnt's ``CudaDataPrefetcher``, two batches ahead as in its documentation."""
    try:
        from torchtnt.utils.data.data_prefetcher import CudaDataPrefetcher  # type: ignore[import-not-found]
    except ImportError:
        return "torchtnt_pattern", _torchtnt_pattern
    return "torchtnt", lambda loader, device: iter(CudaDataPrefetcher(loader, device, num_prefetch_batches=2))


def timm_prefetcher() -> tuple[str, Prefetcher]:
    """Return timm's ``PrefetchLoader``. It turns images into float32 and normalises them, here by 0 and 1."""
    try:
        from timm.data.loader import PrefetchLoader  # type: ignore[import-not-found]
    except ImportError:
        return "timm_pattern", _timm_pattern
    constants: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}
    return "timm", lambda loader, device: iter(PrefetchLoader(loader, **constants, device=device))


def _torchtnt_pattern(loader: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Keep a queue of batches copied on one side stream; refill it when a batch is taken."""
    stream = torch.cuda.Stream(device)
    source = iter(loader)
    waiting: deque[tuple[Batch, torch.cuda.Event]] = deque()

    def fetch() -> None:
        batch = next(source, None)
        if batch is None:
            return
        with torch.cuda.stream(stream):
            images, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
        waiting.append(((images, labels), stream.record_event()))

    fetch()
    fetch()
    while waiting:
        batch, event = waiting.popleft()
        event.wait()
        fetch()
        yield batch


def _timm_pattern(loader: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Stay one batch ahead: launch the next copy on a side stream before the loop gets the current batch."""
    stream = torch.cuda.Stream(device)
    ready: Batch | None = None
    for host_images, host_labels in loader:
        with torch.cuda.stream(stream):
            images = host_images.to(device, non_blocking=True)
            labels = host_labels.to(device, non_blocking=True)
            images = images.to(torch.float32)
        if ready is not None:
            yield ready
        torch.cuda.current_stream(device).wait_stream(stream)
        ready = images, labels
    if ready is not None:
        yield ready
