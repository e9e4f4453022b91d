"""Capture launches in a CUDA graph, and restore all state if that fails.

It stands apart from :mod:`.graphs`: the loop's own work is captured too, also where torchvision is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ...patches import replaced

T = TypeVar("T")

#: Graphs whose capture failed, kept alive: torch's allocator of page-locked memory may still query them.
_FAILED: list[torch.cuda.CUDAGraph] = []


def captured(work: Callable[[], T], device: torch.device) -> tuple[torch.cuda.CUDAGraph, T]:
    """Return a graph of the launches that ``work`` makes on the current stream, and the result of ``work``.

    The capture is first tried with a copy of the device's random generator, because a failed capture leaves its
    generator unusable.

    Raises:
        Exception: any error of the work or of torch; all other state is restored.
    """
    with _generator_set_aside(device):
        _captured(work, device)
    return _captured(work, device)


def _captured(work: Callable[[], T], device: torch.device) -> tuple[torch.cuda.CUDAGraph, T]:
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    with _own_casts():
        # Loading threads may allocate page-locked memory and the like, which must not end the capture.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            made = work()
            graph.capture_end()
        except BaseException:
            _give_up(graph, pool, device)
            raise
    return graph, made


def _give_up(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """End a failed capture, also in the allocator: while it considers a capture active, it keeps every block that two
    streams have used."""
    try:
        graph.capture_end()
    except Exception:
        _FAILED.append(graph)
        end = getattr(torch._C, "_cuda_endAllocateToPool", None) or torch._C._cuda_endAllocateCurrentStreamToPool
        try:
            end(device.index or 0, pool)
            torch._C._cuda_releasePool(device.index or 0, pool)
        except RuntimeError:  # torch has already done it
            pass


@contextmanager
def beside_others() -> Iterator[None]:
    """Let a capture of the loop's own go on while other threads allocate memory or query events, within the context.

    In CUDA's mode "global", torch's default, each such call would end the capture. In "thread_local" only those of the
    capturing thread do.
    """
    native = torch.cuda.CUDAGraph.capture_begin

    def capture_begin(graph: Any, pool: Any = None, capture_error_mode: str = "global", **others: Any) -> None:
        mode = "thread_local" if capture_error_mode == "global" else capture_error_mode
        native(graph, pool=pool, capture_error_mode=mode, **others)

    with replaced(torch.cuda.CUDAGraph, "capture_begin", capture_begin):
        yield


@contextmanager
def _own_casts() -> Iterator[None]:
    """Disable autocast's cache of cast weights inside the context. A CUDA graph must not read cached weights that are
    freed when autocast ends, and the loop must not find weights that were cast without gradients."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)


@contextmanager
def _generator_set_aside(device: torch.device) -> Iterator[None]:
    """Draw from a copy of the generator inside the context."""
    generator = torch.cuda.default_generators[device.index or 0]
    kept = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(kept)
