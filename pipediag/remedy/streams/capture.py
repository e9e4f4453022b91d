"""Capturing launches in a CUDA graph, and leaving nothing behind where that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ..autocast import casts_made_anew

T = TypeVar("T")

#: Graphs whose capture failed: torch's allocator of page-locked memory may go on asking them.
_FAILED: list[torch.cuda.CUDAGraph] = []


def captured(work: Callable[[], T], device: torch.device) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph of what ``work`` launches on the current stream, and what ``work`` gave.

    It is tried once with a copy of the device's random generator: a capture that fails leaves its generator unusable.

    Raises:
        Exception: whatever the work, or torch, raised; everything else goes on as before.
    """
    with _generator_set_aside(device):
        _captured(work, device)
    return _captured(work, device)


def _captured(work: Callable[[], T], device: torch.device) -> tuple[torch.cuda.CUDAGraph, T]:
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    with casts_made_anew():
        # Loading threads allocate page-locked memory and the like; that is theirs, and must not end the capture.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            made = work()
            graph.capture_end()
        except BaseException:
            _give_up(graph, pool, device)
            raise
    return graph, made


def _give_up(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """End a capture that failed. The allocator must be told as well: while it believes that a capture is going on, it
    keeps every block that two streams have used."""
    try:
        graph.capture_end()
    except Exception:
        _FAILED.append(graph)
        end = getattr(torch._C, "_cuda_endAllocateToPool", None) or torch._C._cuda_endAllocateCurrentStreamToPool
        try:
            end(device.index or 0, pool)
            torch._C._cuda_releasePool(device.index or 0, pool)
        except RuntimeError:  # torch has done it by itself
            pass


@contextmanager
def _generator_set_aside(device: torch.device) -> Iterator[None]:
    """What is drawn inside is drawn from a copy of the generator."""
    generator = torch.cuda.default_generators[device.index or 0]
    kept = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(kept)
