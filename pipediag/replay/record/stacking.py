"""Collate with torch's own function, but defer the stacking until the batch's place in memory is known.

torch's code builds the structure, with :class:`Parts` in place of stacked tensors, if no other code would see them. All
else is left to torch, including tensors that cannot be stacked, for which it raises its usual errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from ...usercode.attributes import has_attribute
from .hooks import register


class Parts:
    """Tensors of one shape and dtype, to be stacked; ``shape`` is that of the result."""

    __slots__ = ("dtype", "shape", "tensors")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.shape = (len(tensors), *tensors[0].shape)
        self.dtype = tensors[0].dtype


def stacking(collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return :func:`collated` in place of torch's own ``default_collate``; any other function unchanged."""
    return collated if collate_fn is default_collate else collate_fn


def collated(samples: Any) -> Any:
    """Collate as ``default_collate``, with :class:`Parts` in place of stacked tensors if possible."""
    if not (_is_torchs_own() and _is_usual(samples[0])):
        return default_collate(samples)
    return collate(samples, collate_fn_map={**default_collate_fn_map, Tensor: _stacked_later})


def _is_torchs_own() -> bool:
    """Return whether torch's table of collate functions holds only torch's and ours."""
    return all(function.__module__ in _KNOWN for function in default_collate_fn_map.values())


_KNOWN = (collate.__module__, register.__module__)


def _is_usual(sample: Any) -> bool:
    """Return whether no container of the sample is of the user's own type, which might look at its items."""
    if type(sample) is dict:
        return all(map(_is_usual, sample.values()))
    if type(sample) in (tuple, list) or is_named_tuple(sample):
        return all(map(_is_usual, sample))
    return isinstance(sample, (str, bytes)) or not isinstance(sample, (Mapping, Sequence))


def is_named_tuple(value: Any) -> bool:
    """Return whether the value is a named tuple whose class adds nothing to its fields."""
    return isinstance(value, tuple) and has_attribute(value, "_fields") and type(value).__bases__ == (tuple,)


def _stacked_later(batch: Sequence[Tensor], *, collate_fn_map: Any = None) -> Any:
    like = (batch[0].shape, batch[0].dtype)
    if all(is_plain(tensor) and (tensor.shape, tensor.dtype) == like for tensor in batch):
        return Parts(batch)
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def is_plain(value: Any) -> bool:
    """Return whether the value is a dense tensor in CPU memory, without gradient, quantization or other attributes."""
    return (
        type(value) is Tensor
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_nested or value.is_conj() or value.is_neg())
    )
