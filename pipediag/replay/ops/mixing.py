"""Mix the samples of a batch with their neighbours: MixUp and CutMix, which draw once for a whole batch.

Bit-equal to torchvision v2: sample ``n`` is mixed with sample ``n - 1``, the first with the last.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mixup(x: Tensor, lam: float) -> Tensor:
    """Blend each sample, floating, with the one before it; ``lam`` is the weight of the sample itself."""
    if not x.is_floating_point():
        raise TypeError(f"mixup takes floating images, not {x.dtype}")
    mixed = torch.empty_like(x)
    torch.mul(x[:-1], 1.0 - lam, out=mixed[1:])
    torch.mul(x[-1:], 1.0 - lam, out=mixed[:1])
    return mixed.add_(torch.mul(x, lam, out=torch.empty_like(x)))


def cutmix(x: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    """Paste the part inside ``box`` (left, top, right, bottom; the last two exclusive) of each sample into the one
    after it.
    """
    left, top, right, bottom = box
    mixed = x.clone()
    mixed[1:, ..., top:bottom, left:right] = x[:-1, ..., top:bottom, left:right]
    mixed[:1, ..., top:bottom, left:right] = x[-1:, ..., top:bottom, left:right]
    return mixed
