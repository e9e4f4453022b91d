"""Share, find and read the memory of tensors without a trace that code could see."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from .layout import copied

#: Bytes of a tensor's memory for each of its own from which on it is not shared: a writing would copy it all.
_MUCH_MORE = 2


def kept(tensor: Tensor) -> Tensor:
    """Return a tensor of the same type, strides and elements, which stay as they are now.

    Both share their memory until one is written into: torch copies on writing. Memory is copied at once if code can
    write into it past torch, as into that of an array, or if much more lies in it.
    """
    with torch._C.DisableTorchFunction():
        storage = tensor.untyped_storage()
        own = storage.resizable() and storage.nbytes() <= _MUCH_MORE * tensor.nbytes and not tensor.is_inference()
        if own:
            with suppress(AttributeError, RuntimeError):
                return torch._lazy_clone(tensor).as_subclass(type(tensor))
    return copied(tensor)


def is_kept(tensor: Tensor) -> bool:
    """Return whether nothing has written into the memory of a tensor since it was shared with one that is kept."""
    with suppress(AttributeError, RuntimeError):  # of tensors that are none for C++
        return bool(torch._C._is_cow_tensor(tensor))
    return False


def place_of(tensor: Tensor) -> tuple[int, int]:
    """Return the memory that a tensor lies in, and where. ``data_ptr()`` would end the sharing of :func:`kept`."""
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()._cdata, tensor.storage_offset()


def bytes_of(tensor: Tensor) -> Any:
    """Return the bytes of a contiguous tensor in memory of the CPU to read from, as long as the tensor lives.

    ``numpy()`` would mark its memory as an array's.
    """
    address = torch._C._data_address(tensor) + tensor.storage_offset() * tensor.element_size()
    return (ctypes.c_char * tensor.nbytes).from_address(address) if tensor.nbytes else b""
