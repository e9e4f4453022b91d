"""Hand a batch over from one CUDA stream to another.

Work on one CUDA stream is not ordered with work on another. A batch that is made on one stream and read on another
needs two steps: the reading stream waits for the event that ends the making, and the allocator is told that the reading
stream uses the memory, so that it does not reuse the block as soon as Python drops the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...usercode import tree


@dataclass
class Ready:
    """Batch whose making has been launched; it may be read after waiting for ``event``.

    Attributes:
        batch: on the device.
        event: the end of its making; None on the CPU.
    """

    batch: Any
    event: torch.cuda.Event | None = None


def hand_over(ready: Ready, stream: torch.cuda.Stream) -> Any:
    """Return the batch for work on ``stream``. The host does not wait."""
    if ready.event is not None:
        stream.wait_event(ready.event)
        for tensor in tensors(ready.batch):
            tensor.record_stream(stream)
    return ready.batch


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


def moved(batch: Any, device: torch.device) -> Any:
    """Return the batch on ``device``; data in page-locked memory is copied without blocking the host."""

    def leaf(value: Any) -> Any:  # a user's object moves by its own method
        return value.to(device, non_blocking=True) if isinstance(value, Tensor) else tree.move(value, device)

    return tree.map_leaves(batch, leaf)
