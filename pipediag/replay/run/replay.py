"""Replay a packed batch on the device, which gives the batch that the loader would have made.

Nothing here waits for the device: the memory arrives in one copy, the device reads all numbers and indices from it, and
the worker has already decided the launches. On the CPU the memory is read in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...usercode import tree
from ...usercode.objects import moved
from ..layout import laid_out
from ..ops import mixing
from ..ops.calls import arranged
from ..ops.table import OPERATIONS
from ..pack.packed_batch import (
    Arranged,
    Held,
    Kept,
    Launch,
    Leaf,
    Object,
    Packed,
    Plain,
    Result,
    Section,
    Selection,
    Source,
)


def replay(packed: Packed, device: torch.device, results: Sequence[Tensor] | None = None) -> Any:
    """Return the batch on ``device``: recorded images replayed, everything else copied. It runs on the current stream.

    The batch's tensors share no memory with ``packed``, whose slot is returned to its ring. Where the batch holds one
    tensor twice, it does so again.

    Args:
        packed: as it arrived, or with its memory on the device already (:meth:`Packed.on_device`).
        device: the target device.
        results: the results of the launches, if they have run already.

    Raises:
        UsageError: the batch has been released.
    """
    there = packed.on_device(device)
    ready = results_of(there, there.memory) if results is None else results
    batch = tree.map_leaves(there.batch, _Placed(there.memory, device, ready).leaf)
    there.release()  # on the CPU it still holds its slot
    return batch


class _Placed:
    """Fills the placeholders of a batch. Functions that call each other would be a cycle, and keep the batch's memory
    until Python next looks for cycles."""

    def __init__(self, memory: Tensor, device: torch.device, results: Sequence[Tensor]) -> None:
        self._memory = memory
        self._device = device
        self._results = results
        self._known: dict[int, Any] = {}  # by the id of the placeholder

    def leaf(self, value: Any) -> Any:
        """Return the tensor or object for a placeholder; copy anything else to the device."""
        if id(value) not in self._known:
            self._known[id(value)] = self._made(value)
        return self._known[id(value)]

    def _made(self, value: Any) -> Any:
        if isinstance(value, Held):
            return value.filled(lambda part: tree.map_leaves(part, self.leaf), self._device)
        if isinstance(value, Object):
            return value.filled(lambda part: tree.map_leaves(part, self.leaf))
        if isinstance(value, Plain):
            return _by_itself(value, self._memory)
        if isinstance(value, (Leaf, Arranged)):
            made = self._image(value) if isinstance(value, Leaf) else self._arranged(value)
            if value.elsewhere is not None and made.is_cpu:
                value.elsewhere.becomes(made)
            return made
        return moved(value.value if isinstance(value, Kept) else value, self._device, non_blocking=True)

    def _arranged(self, value: Arranged) -> Tensor:
        made = arranged(value.name, *tree.map_leaves((value.args, value.kwargs), self.leaf))
        return made.data if value.elsewhere is None else made

    def _image(self, value: Leaf) -> Tensor:
        made = self._results[value.number].reshape(value.shape).data  # no view: code may detach it in place
        for how, amount in value.mixes:
            made = getattr(mixing, how)(made, amount)
        if value.stride is not None:
            made = laid_out(made, value.stride)
        return made if value.wrap is None else value.wrap(made)


def results_of(packed: Packed, memory: Tensor) -> list[Tensor]:
    """Return the results of the launches for the images in ``memory``, which is the batch's own or has its layout."""
    return _run(packed, memory, packed.sources) if packed.results else []


def _by_itself(plain: Plain, memory: Tensor) -> Tensor:
    """Return a tensor with its own storage, so that kept labels do not keep a batch's images.

    A tensor that fills most of the memory keeps that storage, except on the CPU, where a worker may write to it.
    """
    tensor = plain.of(memory)
    if memory.device.type == "cpu" or 2 * plain.section.nbytes <= memory.numel():
        return tensor.clone()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor)  # no view: its own version counter


def replay_on(packed: Packed, images: Tensor) -> Tensor:
    """Apply the packed ops to images ``(N, C, H, W)``, or masks ``(N, H, W)``, that are already on their device."""
    images = images.unsqueeze(1) if images.ndim == 3 else images
    (result,) = _run(packed, packed.memory.to(images.device, non_blocking=True), [images])
    return result


def _run(packed: Packed, memory: Tensor, sources: Sequence[Tensor | Source]) -> list[Tensor]:
    """Run all launches, without gradients and without the loop's autocast."""
    groups = _Groups(memory, sources)
    with torch.no_grad(), torch.autocast(memory.device.type, enabled=False):
        for launch in packed.launches:
            groups.run(launch)
        return [groups.result(result) for result in packed.results]


def _is_part(tensor: Tensor) -> bool:
    return bool(tensor.nbytes < tensor.untyped_storage().nbytes())


class _Groups:
    """Images of a batch during its replay, in groups of one shape."""

    def __init__(self, memory: Tensor, sources: Sequence[Tensor | Source]) -> None:
        self._memory = memory
        self._nothing = memory[:0]
        self._sources = len(sources)
        self._tensors: dict[int, Tensor | Source] = dict(enumerate(sources))  # a source until a launch takes it

    def run(self, launch: Launch) -> None:
        numbers = self._nothing if launch.numbers is None else launch.numbers.of(self._memory)
        bulk = self._nothing if launch.bulk is None else launch.bulk.of(self._memory)
        parts, operation = [self._taken(take) for take in launch.takes], OPERATIONS[launch.name]
        if not parts:
            self._tensors[launch.group] = operation.apply([self._memory], numbers, launch.static, bulk)
            return
        made = operation.apply(parts, numbers, launch.static, bulk)
        if made.data_ptr() == parts[0].data_ptr():  # the kernel's own input, which later launches may overwrite
            made = made.clone()
        if not launch.in_place:
            self._tensors[launch.group] = made
            return
        (take,) = launch.takes
        group = self._group(take.group)
        if isinstance(take.rows, range):
            group[take.rows.start : take.rows.stop] = made
        else:
            assert take.rows is not None
            group.index_copy_(0, take.rows.of(self._memory), made)

    def result(self, result: Result) -> Tensor:
        parts = [self._taken(take) for take in result.takes]
        made = parts[0] if len(parts) == 1 else torch.cat(parts)
        if len(parts) == 1 and (result.takes[0].group < self._sources or (made.is_cpu and _is_part(made))):
            made = made.clone()  # several results may share one unchanged image; who keeps or saves one has only that
        if result.order is not None:
            made = made.index_select(0, result.order.of(self._memory))
        return made.contiguous()

    def _taken(self, take: Selection) -> Tensor:
        group = self._group(take.group)
        if take.rows is None:
            return group
        if isinstance(take.rows, Section):
            return group.index_select(0, take.rows.of(self._memory))
        return group[take.rows.start : take.rows.stop]

    def _group(self, number: int) -> Tensor:
        group = self._tensors[number]
        if isinstance(group, Source):
            group = self._tensors[number] = group.of(self._memory)
        return group
