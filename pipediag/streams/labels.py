"""Label our own work in the traces of the user's profiler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch.autograd import profiler


def labelled(work: str) -> AbstractContextManager[object]:
    """Return a context whose work is called ``pipediag: work`` in a trace.

    Torch's own label takes some ten microseconds even if no profiler runs, this one about one. Torch records the label
    of a background thread, where batches are fetched ahead of the loop, only under ``profile_all_threads``.
    """
    return profiler.record_function(f"pipediag: {work}") if profiler._is_profiler_enabled else nullcontext()
