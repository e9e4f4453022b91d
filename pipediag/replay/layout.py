"""Lay a tensor out by given strides."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

Strides = tuple[int, ...]


def contiguous(shape: tuple[int, ...]) -> Strides:
    """Return the strides of a contiguous tensor."""
    return tuple(torch.empty(shape, device="meta").stride())


def laid_out(tensor: Tensor, strides: Strides) -> Tensor:
    """Return a copy with these strides; on a device other than the CPU, with those that a copy to it has."""
    if not (tensor.is_cpu or tensor.is_meta):
        like = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="meta")
        return torch.empty_like(like, device=tensor.device).copy_(tensor)
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    made[once].copy_(tensor[once])
    return made


def laid(tensor: Tensor, strides: Strides) -> Tensor:
    """Return the tensor with these strides: itself if it has them."""
    return tensor if tensor.stride() == strides else laid_out(tensor, strides)


def copied(tensor: Tensor) -> Tensor:
    """Return a copy of the same type and strides."""
    try:
        made = laid_out(tensor.as_subclass(Tensor), tensor.stride())
    except RuntimeError:  # its elements overlap
        return tensor.clone()
    return made.as_subclass(type(tensor))


def is_dense(tensor: Tensor) -> bool:
    """Return whether the elements fill their memory without gaps, in any order of the dimensions."""
    outermost_first = sorted(range(tensor.ndim), key=lambda dim: (-tensor.stride(dim), dim))
    return bool(tensor.permute(outermost_first).is_contiguous())


#: Maximum number of runs of elements to compare one by one.
_RUNS = 4096


def may_overlap(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two tensors without memory, counted from one place, may have an element in common; None: any."""
    runs = _runs(one), _runs(other)
    if runs[0] is None or runs[1] is None:
        return True
    both = sorted(runs[0] + runs[1])
    return any(end > begin for (_, end), (begin, _) in pairwise(both))


def _runs(tensor: Tensor | None) -> list[tuple[int, int]] | None:
    """Return where each run of neighbouring elements begins and ends; None if there are too many."""
    if tensor is None:
        return None
    length = 1
    outer: list[tuple[int, int]] = []
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride == length and not outer:
            length *= size
        elif size > 1:
            outer.append((stride, size))
    if math.prod(size for _, size in outer) > _RUNS:
        return None
    begins = [tensor.storage_offset()]
    for stride, size in outer:
        begins = [begin + stride * k for begin in begins for k in range(size)]
    return [(begin, begin + length) for begin in begins]


def same_strides(made: Tensor, plain: Tensor) -> bool:
    """Return whether a tensor has the strides that the plain one has, once it is on the same device."""
    like = plain if made.is_cpu else torch.empty_like(plain, device="meta")
    return bool(made.stride() == like.stride())
