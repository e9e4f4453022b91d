"""Erasing a box of each sample's own.

Both kernels give what ``erase_image`` of torchvision v2 gives for each image, bit by bit. Boxes are whole numbers of
any dtype, ``(N,)`` each; one of height or width 0 leaves its sample as it is. Results are new tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor


def erase(x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, value: Tensor) -> Tensor:
    """Fill boxes with one value for each channel.

    Args:
        x: images ``(N, C, H, W)`` of any dtype.
        top, left, height, width: of the boxes; what lies outside the image is ignored.
        value: ``(N, C)`` or ``(N, 1)``, converted to the dtype of ``x`` as an assignment does it.
    """
    rows = _between(x.shape[-2], top, height)[:, None, :, None]
    columns = _between(x.shape[-1], left, width)[:, None, None, :]
    return torch.where(rows & columns, value[:, :, None, None].to(x.dtype), x)


def erase_packed(
    x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, values: Tensor, offsets: Tensor
) -> Tensor:
    """Fill boxes with drawn values, one for each pixel. Only the pixels inside are touched, whatever their number.

    Args:
        x: images ``(N, C, H, W)`` of any dtype.
        top, left, height, width: of the boxes, which lie inside the images.
        values: flat; for each sample in turn ``C * height * width`` of them, row by row, channel by channel.
        offsets: ``(N,)``, where in ``values`` those of a sample begin.
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
    """Which of ``size`` positions lie in each sample's interval: ``(N, size)``."""
    position = torch.arange(size, device=begin.device)
    return (position >= begin[:, None]) & (position < (begin + length)[:, None])
