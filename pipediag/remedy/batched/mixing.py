"""Mix the samples of a batch with their neighbours: MixUp and CutMix, which draw once for a whole batch.

Bit-equal to torchvision v2: sample ``n`` is mixed with sample ``n - 1``, the first with the last.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

#: A number, or a tensor (1,) in float64.
Weight: TypeAlias = float | Tensor


def mixup(x: Tensor, lam: Weight) -> Tensor:
    """Blend each sample with the one before it.

    Args:
        x: floating, ``(N, ...)``.
        lam: the weight of the sample itself.

    Raises:
        TypeError: ``x`` is not floating.
    """
    if not x.is_floating_point():
        raise TypeError(f"mixup takes floating images, not {x.dtype}")
    other = _operand(1.0 - lam, x.dtype)
    mixed = torch.empty_like(x)
    torch.mul(x[:-1], other, out=mixed[1:])
    torch.mul(x[-1:], other, out=mixed[:1])
    return mixed.add_(torch.mul(x, _operand(lam, x.dtype), out=torch.empty_like(x)))


def cutmix(x: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    """Paste the part inside ``box`` of each sample into the one after it.

    Args:
        x: images ``(N, C, H, W)`` of any dtype.
        box: (left, top, right, bottom), the last two exclusive, as torchvision's ``CutMix`` draws it.
    """
    left, top, right, bottom = box
    mixed = x.clone()
    mixed[1:, ..., top:bottom, left:right] = x[:-1, ..., top:bottom, left:right]
    mixed[:1, ..., top:bottom, left:right] = x[-1:, ..., top:bottom, left:right]
    return mixed


def _operand(weight: Weight, dtype: torch.dtype) -> Weight:
    """Round as torch rounds a Python float for a tensor of ``dtype``: half precision computes in float32."""
    if not isinstance(weight, Tensor):
        return weight
    return weight.to(torch.float64 if dtype == torch.float64 else torch.float32)
