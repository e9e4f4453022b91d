"""Describe a batch: the values that each tensor really holds, and how long it takes to copy the batch.

Batches that are cached anyway are examined once, outside the timed windows. Of large tensors only a part is examined:
whole samples, spread over the batch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory

from ...clock import Clock
from ...measure.device import Device
from ...session import BatchFacts, Leaf, Padding
from ...usercode import tree
from ...usercode.paths import Attribute, Path, walk

#: Elements of a tensor that are examined, and elements whose distinct values are counted.
ELEMENTS, _COUNTED = 1 << 22, 1 << 18
#: Number of distinct values in a byte, and the minimum number of elements from which that is concluded.
_BYTE, _FEW = 256, 1 << 12
#: Maximum number of tensors examined in a batch, largest first; graphs or ragged data may hold thousands.
_LEAVES = 16
#: Maximum size of an image batch's second dimension for it to count as channels.
_CHANNELS = 4
#: Tolerance between a byte divided by 255 and the loader's value, in units of 1/255.
_ROUNDING = 1e-3
#: Minimum constant share of a tensor that counts as padding, and maximum share that may be constant on the other side
#: too: a margin on all sides is an image's background.
_MARGIN, _OTHER_SIDE = 0.02, 0.01
#: Timed copies, after one untimed copy, and the bytes of the largest batch that is pinned for them.
_COPIES, _PINNED_BYTES = 3, 256 << 20


def leaves_of(batch: Any) -> list[tuple[Path, Tensor]]:
    """Return the tensors of a batch with their paths: the largest ones if there are many."""
    found = {id(part): (path, part) for path, part in walk(batch) if isinstance(part, Tensor)}
    ranked = sorted(found.values(), key=lambda leaf: tree.nbytes(leaf[1]), reverse=True)[:_LEAVES]
    chosen = {id(part) for _, part in ranked}
    return [leaf for key, leaf in found.items() if key in chosen]


def path_text(path: Path) -> str:
    """Return a tensor's path as the user would write it after the batch's name: ``[0]``, ``['image']``, ``.x``."""
    return "".join(f".{step}" if isinstance(step, Attribute) else f"[{step!r}]" for step in path)


def describe_leaves(batches: Sequence[Any]) -> list[Leaf]:
    """Return what each tensor of the batches holds, in the first batch's structure.

    A value is given only if all batches agree. A tensor that later batches lack, or have with another dtype, is
    described from the batches that match.
    """
    others = [{path_text(path): part for path, part in leaves_of(batch)} for batch in batches[1:]]
    found = []
    for path, first in leaves_of(batches[0]) if batches else []:
        name = path_text(path)
        tensors = [first, *(other[name] for other in others if name in other and other[name].dtype == first.dtype)]
        found.append(_described(name, tensors))
    return found


def _described(name: str, tensors: list[Tensor]) -> Leaf:
    first = tensors[0]
    leaf = Leaf(
        path=name,
        shape=list(first.shape),
        dtype=str(first.dtype).removeprefix("torch."),
        itemsize=first.element_size(),
        nbytes=tree.nbytes(first),
        pinned=is_pinned(first),
    )
    if all(map(_can_be_examined, tensors)):
        with torch.no_grad(), suppress(Exception):  # a tensor type may lack some operations
            _fill_in(leaf, [_part(tensor) for tensor in tensors])
    return leaf


def _fill_in(leaf: Leaf, parts: list[Tensor]) -> None:
    low, high = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
    if not (math.isfinite(low) and math.isfinite(high)):
        return
    leaf.low, leaf.high = low, high
    floating = parts[0].is_floating_point()
    leaf.whole_numbers = not floating or all(bool((part == part.round()).all()) for part in parts)
    leaf.bytes_over_255 = (
        floating and not leaf.whole_numbers and low >= 0.0 and high <= 1.0 and all(map(_is_bytes_over_255, parts))
    )
    leaf.levels = _levels(parts)
    if (low, high) == (0.0, 1.0) and leaf.whole_numbers:
        leaf.one_hot = _classes(parts)
    leaf.padding = _padding(parts)


def _can_be_examined(tensor: Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.numel() == 0:
        return False
    return not bool(tensor.is_quantized or tensor.is_complex() or tensor.is_nested)


def is_pinned(tensor: Tensor) -> bool:
    try:
        return bool(tensor.device.type == "cpu" and tensor.is_pinned())
    except RuntimeError:  # no memory of its own
        return False


def _part(tensor: Tensor) -> Tensor:
    """Return evenly spread samples of a large tensor, or the first elements of one with a single large sample.

    They are plain tensors: a subclass may allow fewer operations, or do more than to compute.
    """
    with torch._C.DisableTorchFunctionSubclass():
        tensor = tensor.detach().as_subclass(Tensor)
    if tensor.numel() <= ELEMENTS:
        return tensor
    if tensor.dim() > 1 and tensor[0].numel() <= ELEMENTS:
        return tensor[:: math.ceil(tensor.numel() / ELEMENTS)]
    return tensor.reshape(-1)[:ELEMENTS]


def _is_bytes_over_255(part: Tensor) -> bool:
    scaled = part.to(torch.float32) * 255
    return bool(((scaled - scaled.round()).abs() <= _ROUNDING).all())


def _levels(parts: list[Tensor]) -> int | None:
    """Return the largest number of distinct values per channel over all batches.

    A channel is the second dimension of image batches, otherwise the whole tensor. The result is None if a byte cannot
    hold that many values, or if there are too few elements to tell.
    """
    if sum(part.numel() for part in parts) < _FEW:
        return None
    most = 0
    channels = parts[0].shape[1] if parts[0].dim() == 4 and parts[0].shape[1] <= _CHANNELS else None
    for number in range(channels or 1):
        seen = torch.empty(0, dtype=parts[0].dtype)
        for part in parts:
            values = part.reshape(-1) if channels is None else part[:, number].reshape(-1)
            # A few thousand values nearly always decide it.
            for count in (_FEW, _COUNTED):
                chosen = values[:: max(1, values.numel() // count)]
                seen = torch.cat([seen, chosen.unique()]).unique()
                if seen.numel() > _BYTE:
                    return None
        most = max(most, seen.numel())
    return most


def _classes(parts: list[Tensor]) -> int | None:
    """Return the number of classes of a one-hot tensor of zeros and ones, or None if it is not one-hot."""
    for dim in range(parts[0].dim() - 1, 0, -1):
        if parts[0].shape[dim] > 2 and all(bool((part.sum(dim) == 1).all()) for part in parts):
            return int(parts[0].shape[dim])
    return None


def _padding(parts: list[Tensor]) -> Padding | None:
    """Return the constant that pads the samples of each batch at the end or at the beginning, or None."""
    if parts[0].dim() < 2 or any(part.dim() != parts[0].dim() for part in parts):
        return None
    found = []
    for leading in (False, True):
        value = _filler(parts, leading)
        if value is None:
            continue
        padding, widest = _margin(parts, value, leading)
        # An image's background is on all sides of it; a token that begins every text is only one place wide.
        background = _margin(parts, value, not leading)[0].share > _OTHER_SIDE
        if padding.share >= _MARGIN and widest > 1 and not background:
            found.append(padding)
    return max(found, key=lambda padding: padding.share, default=None)


def _margin(parts: list[Tensor], value: float, leading: bool) -> tuple[Padding, int]:
    """Return what ``value`` fills at one end of the samples, and the longest run that it fills in any sample."""
    shares, beyond, widest = [], [], 0
    for part in parts:
        part = part.flip(tuple(range(1, part.dim()))) if leading else part
        used, longest = torch.ones(len(part)), 1.0
        for dim in range(1, part.dim()):
            size = part.shape[dim]
            inside = (part != value).transpose(1, dim).reshape(len(part), size, -1).any(2)
            extent = (inside * torch.arange(1, size + 1)).amax(1)
            used, longest = used * extent / size, longest * float(extent.max()) / size
            widest = max(widest, size - int(extent.min()))
        shares.append(1.0 - float(used.mean()))
        beyond.append(1.0 - longest)
    return Padding(value, round(statistics.fmean(shares), 4), round(statistics.fmean(beyond), 4)), widest


def _filler(parts: list[Tensor], leading: bool) -> float | None:
    """Return the value in the corners of at least half of the samples, or None."""
    corner = 0 if leading else -1
    corners = torch.cat([part[(slice(None), *[corner] * (part.dim() - 1))].reshape(-1) for part in parts])
    value = float(corners.to(torch.float64).mode().values)
    return value if float((corners == value).float().mean()) >= 0.5 else None


def describe(batches: Sequence[Any], device: Device, clock: Clock) -> BatchFacts:
    """Return what these batches hold, and how long it takes to copy the first of them."""
    facts = BatchFacts(describe_leaves(batches))
    if not device.is_cpu:
        copy_times(facts, batches[0], device, clock)
    return facts


def copy_times(facts: BatchFacts, batch: Any, device: Device, clock: Clock) -> None:
    def timed(copy: Callable[[], Any]) -> float:
        copy()
        times = []
        for _ in range(_COPIES):
            device.synchronize()
            began = clock.now()
            copy()
            device.synchronize()
            times.append(1000.0 * (clock.now() - began))
        return round(statistics.median(times), 4)

    target = device.torch_device
    facts.copy_ms = timed(lambda: tree.move(batch, target))
    moved = tree.move(batch, target)
    facts.device_copy_ms = timed(lambda: tree.clone(moved))
    if tree.nbytes(batch) <= _PINNED_BYTES:
        try:
            pinned = pin_memory(batch)
        except RuntimeError:  # no more page-locked memory available
            return
        facts.pinned_copy_ms = timed(lambda: tree.move(pinned, target))
