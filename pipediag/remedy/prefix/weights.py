"""The weights that a prefix reads, and whether anything changes them after all."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ...errors import UsageError
from .trace import Weight

#: Integers as wide as an element, to sum up its bits.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Elements that are summed up at once: torch makes a wider copy of them.
_AT_ONCE = 1 << 23


class NotFrozen(UsageError):
    """What a prefix runs ahead of the loop is changed by the loop."""


class Weights:
    """Parameters and buffers, as they were when this was made.

    Training changes some weights that need no gradient: a teacher that follows its student, for one. One forward does
    not show that; a comparison before and after some steps does. Bits are compared by their sum, since writes through
    ``.data`` leave no other trace.
    """

    def __init__(self, weights: Iterable[Weight], modules: Iterable[tuple[str, nn.Module]]) -> None:
        """``modules`` are those whose train mode counts, with their names."""
        self._weights = list(weights)
        self._evaluating = [(name, module) for name, module in modules if not module.training]
        self._sums = _sums(self._weights)
        self._tensors = [(weight.name, weight.tensor()) for weight in self._weights]

    def check(self) -> None:
        """Cheap enough for every batch: reads no values.

        Raises:
            NotFrozen: a module has been put into train mode since, or a weight requires grad.
        """
        for name, module in self._evaluating:
            if module.training:
                raise NotFrozen(f"{name} is in train mode now: call {name}.eval(), or find the prefix anew")
        for name, tensor in self._tensors:
            if tensor is not None and tensor.requires_grad:
                raise NotFrozen(f"{name} requires grad now: find the prefix anew")

    def changed(self) -> str | None:
        """The name of a weight that holds something else than at the beginning. Reads all of them, and waits."""
        now = _sums(self._weights)
        pairs = zip(self._weights, self._sums, now, strict=True)
        return next((weight.name for weight, before, after in pairs if before != after), None)


def _sums(weights: list[Weight]) -> list[int | None]:
    """The sum of the bits of each weight; all on a device are waited for together."""
    found: list[int | None] = [None] * len(weights)
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for number, weight in enumerate(weights):
        tensor = weight.tensor()
        if tensor is not None:
            by_device.setdefault(tensor.device, []).append((number, _sum(tensor.detach())))
    for sums in by_device.values():
        values = torch.stack([one for _, one in sums]).tolist()
        for (number, _), value in zip(sums, values, strict=True):
            found[number] = value
    return found


def _sum(tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized:
        return torch.tensor(tensor._version, device=tensor.device)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    bits = tensor.view(_BITS[tensor.element_size()]).flatten()
    return torch.stack([part.sum() for part in bits.split(_AT_ONCE)]).sum()
