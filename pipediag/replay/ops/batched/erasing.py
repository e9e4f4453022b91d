"""Erase a box in each sample of a batch.

Both kernels are bit-equal to ``erase_image`` of torchvision v2 for each image. Boxes are whole numbers of any dtype,
``(N,)`` each; a box of height or width 0 leaves its sample unchanged. Results are new tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor


def erase(x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, value: Tensor) -> Tensor:
    """Fill boxes with one value per channel.

    Args:
        x: images ``(N, C, H, W)`` of any dtype.
        top, left, height, width: of the boxes; parts outside the image are ignored.
        value: ``(N, C)`` or ``(N, 1)``, converted to the dtype of ``x`` as an assignment does.
    """
    rows = _between(x.shape[-2], top, height)[:, None, :, None]
    columns = _between(x.shape[-1], left, width)[:, None, None, :]
    return torch.where(rows & columns, value[:, :, None, None].to(x.dtype), x)


def erase_packed(
    x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, values: Tensor, offsets: Tensor
) -> Tensor:
    """Fill boxes with drawn values, one for each pixel and channel.

    Args:
        x: images ``(N, C, H, W)`` of any dtype.
        top, left, height, width: of the boxes, which lie inside the images.
        values: flat; ``C * height * width`` values for each sample in turn, channel by channel, row by row.
        offsets: ``(N,)``, index in ``values`` of each sample's first value.
    """
    if not values.numel():
        return x.clone()
    boxes = torch.stack((offsets, height * width, width, top, left), 1).long()
    position = torch.arange(values.numel(), device=x.device)
    sample = torch.searchsorted(boxes[1:, 0].contiguous(), position, right=True)
    begin, area, across, down, right = boxes[sample].unbind(1)
    position -= begin
    pixel = position % area
    out = x.clone()
    out[sample, position // area, pixel // across + down, pixel % across + right] = values.to(x.dtype)
    return out


def _between(size: int, begin: Tensor, length: Tensor) -> Tensor:
    """Return ``(N, size)``: True for positions in each sample's interval."""
    position = torch.arange(size, device=begin.device)
    return (position >= begin[:, None]) & (position < (begin + length)[:, None])
