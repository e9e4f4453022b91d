"""Prefetchers of other libraries: their own where the library is installed, else their pattern.

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
    """The plain loop: a copy when the batch is due, which the host need not wait for where its memory is pinned."""
    for images, labels in loader:
        yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def torchtnt_prefetcher() -> tuple[str, Prefetcher]:
    """``torchtnt.utils.data.data_prefetcher.CudaDataPrefetcher``, two batches ahead as in its documentation."""
    try:
        from torchtnt.utils.data.data_prefetcher import CudaDataPrefetcher  # type: ignore[import-not-found]
    except ImportError:
        return "torchtnt_pattern", _torchtnt_pattern
    return "torchtnt", lambda loader, device: iter(CudaDataPrefetcher(loader, device, num_prefetch_batches=2))


def timm_prefetcher() -> tuple[str, Prefetcher]:
    """``timm.data.loader.PrefetchLoader``. It turns images into float32 and normalises them; here by 0 and 1."""
    try:
        from timm.data.loader import PrefetchLoader  # type: ignore[import-not-found]
    except ImportError:
        return "timm_pattern", _timm_pattern
    constants: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}
    return "timm", lambda loader, device: iter(PrefetchLoader(loader, **constants, device=device))


def _torchtnt_pattern(loader: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """A queue of batches whose copies were launched on one side stream; refilled when one is taken."""
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
    """One batch ahead: the next copy is launched on a side stream before the loop gets the batch before it."""
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
