"""Which memory a tensor lies in: what is common to it, its views and what was detached from it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

#: The key of tensors that have no memory to be known by.
UNKNOWN = -1


def memory_of(tensor: Tensor) -> int | None:
    """A number for the memory that a tensor lies in, valid as long as that lives; None where it has none of its own."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # opaque formats, wrappers
        return None


class Keys:
    """Numbers for memory, one for each storage. No number is given twice while this lives, nothing is kept alive."""

    def __init__(self) -> None:
        self._held: dict[int, StorageWeakRef] = {}

    def of(self, tensor: Tensor) -> frozenset[int]:
        """The keys of a tensor: several for a sparse one."""
        return frozenset(self._key(part) for part in _parts(tensor))

    def of_all(self, tensors: Iterable[Tensor]) -> frozenset[int]:
        return frozenset(key for tensor in tensors for key in self.of(tensor))

    def _key(self, tensor: Tensor) -> int:
        key = memory_of(tensor)
        if key is None:
            return UNKNOWN
        if key not in self._held:
            self._held[key] = StorageWeakRef(tensor.untyped_storage())  # keeps the address, not the memory
        return key


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)
