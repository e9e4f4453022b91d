"""Hand a batch over from one CUDA stream to another.

Work on one CUDA stream is not ordered with work on another. A batch that is made on one stream and read on another
needs two steps: the reading stream waits for the event that ends the making, and the allocator is told that the reading
stream uses the memory, so that it does not reuse the block as soon as Python drops the tensor.

A loop may read its batches on a stream of its own, as timm's ``PrefetchLoader`` does. It expects batches in host
memory, so its stream may not wait for the one that is current when the loop asks. Such streams are found where the
loop's functions keep them, and every batch is handed over to them too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler

from ..frames import is_ours
from ..usercode import tree
from ..usercode.attributes import attribute


@dataclass
class Ready:
    """Batch whose making has been launched; it may be read after waiting for ``event``."""

    batch: Any  # on the device
    event: torch.cuda.Event | None = None  # the end of its making; None on the CPU


def hand_over(ready: Ready, stream: torch.cuda.Stream) -> Any:
    """Return the batch for work on ``stream``. The host does not wait."""
    if ready.event is not None:
        stream.wait_event(ready.event)
        for tensor in tensors(ready.batch):
            tensor.record_stream(stream)
    return ready.batch


def copied(batch: Any) -> Any:
    """Return a copy that the loop may read on any of its streams and write into; pinned memory is pinned again.

    The copy is made on the current stream, and a stream of the loop's own would not wait for it.
    """
    copy = tree.clone_pinned(batch)
    for device in {tensor.device for tensor in tensors(copy)}:
        ready = Ready(copy, torch.cuda.current_stream(device).record_event())
        for stream in loops_streams(device):
            hand_over(ready, stream)
    return copy


def loops_streams(device: torch.device) -> list[torch.cuda.Stream]:
    """Return the device's streams in variables of the calling functions and in attributes of their first arguments.

    pipediag's own functions are left out.
    """
    found: dict[int, torch.cuda.Stream] = {}
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if not is_ours(frame.f_code.co_filename):
            found.update((id(stream), stream) for stream in _streams_in(frame) if stream.device == device)
        frame = frame.f_back
    return list(found.values())


#: References to a function's ``f_locals`` if nobody else holds it: the frame's, a variable's and that of the call.
_UNSHARED = 3


def _streams_in(frame: FrameType) -> list[torch.cuda.Stream]:
    code, names = frame.f_code, frame.f_locals
    first = names.get(next(iter(code.co_varnames[: code.co_argcount]), ""))
    values = (*names.values(), *attribute(first, "__dict__", {}).values())
    found = [value for value in values if issubclass(type(value), torch.cuda.Stream)]  # isinstance() loads lazy objects
    own = names.keys() <= {*code.co_varnames, *code.co_cellvars, *code.co_freevars}  # the others were made by exec()
    is_copy = bool(code.co_flags & inspect.CO_OPTIMIZED) and type(names) is dict
    if is_copy and own and sys.getrefcount(names) <= _UNSHARED:
        names.clear()  # before Python 3.13 it lives as long as the function, and would keep an old batch
    return found


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yield every strided CUDA tensor in a batch of any structure, including the components of sparse tensors."""
    for tensor in tree.tensors(batch):
        if tensor.is_cuda:
            yield from _strided(tensor)


def _strided(tensor: Tensor) -> Iterator[Tensor]:
    if tensor.layout == torch.strided:
        yield tensor
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:  # jagged: a nested tensor
        yield from (tensor.values(), tensor.offsets())


def labelled(work: str) -> AbstractContextManager[object]:
    """Return a context whose work is called ``pipediag: work`` in a trace.

    Torch's own label takes some ten microseconds even if no profiler runs, this one about one. Torch records the label
    of a background thread, where batches are fetched ahead of the loop, only under ``profile_all_threads``.
    """
    return profiler.record_function(f"pipediag: {work}") if profiler._is_profiler_enabled else nullcontext()
