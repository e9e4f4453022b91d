"""The device's side: a packed batch becomes the batch that the loader would have made.

Nothing here waits for the device. The memory arrives in one copy, every number and index is read from it there, and
which launches there are was decided in the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..ladder import tree
from . import kernels
from .batched import mixing
from .custom import Moved
from .packing import Launch, Leaf, Packed, Result, Section, Selection, Source

#: The user's own links as they work on the device.
Own = Mapping[Any, Moved]


def replay(packed: Packed, device: torch.device, own: Own = MappingProxyType({})) -> Any:
    """The batch on ``device``: recorded images replayed, everything else copied. Runs on the current stream.

    ``own`` holds the user's own links that work on the device, by the place that ``custom`` ops name.
    """
    memory = packed.memory.to(device, non_blocking=True)
    results = _run(packed, memory, [_source(memory, source) for source in packed.sources], own)

    def leaf(value: Any) -> Any:
        if isinstance(value, Leaf):
            made = results[value.number].reshape(value.shape)
            for how, amount in value.mixes:
                made = _MIXES[how](made, amount)
            return made if value.wrap is None else value.wrap(made)
        return value.to(device, non_blocking=True) if isinstance(value, Tensor) else tree.move(value, device)

    return tree.map_leaves(packed.batch, leaf)


_MIXES: dict[str, Callable[[Tensor, Any], Tensor]] = {"mixup": mixing.mixup, "cutmix": mixing.cutmix}


def replay_on(packed: Packed, images: Tensor, own: Own = MappingProxyType({})) -> Tensor:
    """The images ``(N, C, H, W)``, or masks ``(N, H, W)``, on their device already, after the ops packed for them."""
    images = images.unsqueeze(1) if images.ndim == 3 else images
    (result,) = _run(packed, packed.memory.to(images.device, non_blocking=True), [images], own)
    return result


def _run(packed: Packed, memory: Tensor, sources: Sequence[Tensor], own: Own) -> list[Tensor]:
    """All launches; neither recorded for a gradient nor in the lower precision that the loop may run under."""
    groups = _Groups(memory, sources, own)
    with torch.no_grad(), torch.autocast(memory.device.type, enabled=False):
        for launch in packed.launches:
            groups.run(launch)
        return [groups.result(result) for result in packed.results]


class _Groups:
    """The images of a batch while it is replayed, in groups of one shape."""

    def __init__(self, memory: Tensor, sources: Sequence[Tensor], own: Own) -> None:
        self._memory = memory
        self._own = own
        self._nothing = memory[:0]
        self._sources = len(sources)
        self._tensors = dict(enumerate(sources))

    def run(self, launch: Launch) -> None:
        numbers = self._nothing if launch.numbers is None else launch.numbers.of(self._memory)
        bulk = self._nothing if launch.bulk is None else launch.bulk.of(self._memory)
        parts = [self._taken(take) for take in launch.takes]
        if launch.name == "custom":
            made = self._own[launch.static[0]].apply(torch.cat(parts))
        else:
            made = kernels.apply(launch.name, parts, numbers, launch.static, bulk, self._memory)
        if made.data_ptr() == parts[0].data_ptr():  # nothing to do for these; later launches may write into theirs
            made = made.clone()
        if not launch.in_place:
            self._tensors[launch.group] = made
            return
        (take,) = launch.takes
        group = self._tensors[take.group]
        if isinstance(take.rows, range):
            group[take.rows.start : take.rows.stop] = made
        else:
            assert take.rows is not None
            group.index_copy_(0, take.rows.of(self._memory), made)

    def result(self, result: Result) -> Tensor:
        parts = [self._taken(take) for take in result.takes]
        made = parts[0] if len(parts) == 1 else torch.cat(parts)
        if len(parts) == 1 and result.takes[0].group < self._sources:
            made = made.clone()  # several results may be of one image that nothing was done with
        if result.order is not None:
            made = made.index_select(0, result.order.of(self._memory))
        return made.contiguous()

    def _taken(self, take: Selection) -> Tensor:
        group = self._tensors[take.group]
        if take.rows is None:
            return group
        if isinstance(take.rows, Section):
            return group.index_select(0, take.rows.of(self._memory))
        return group[take.rows.start : take.rows.stop]


def _source(memory: Tensor, source: Source) -> Tensor:
    images = source.section.of(memory)
    if source.channels_last:
        return images.permute(0, 3, 1, 2)
    return images.unsqueeze(1) if images.ndim == 3 else images  # masks of shape (H, W)
