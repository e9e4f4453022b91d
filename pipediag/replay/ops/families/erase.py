"""Erase a box in each sample of a batch.

Both kernels are bit-equal to ``erase_image`` of torchvision v2 for each image. Boxes are whole numbers of any dtype,
``(N,)`` each; a box of height or width 0 leaves its sample unchanged. Results are new tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..exactness import exact
from ..op import NotRecordable, Op, State
from ..operation import Functional, Laid, Operation, Static, Values


def erased(x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, value: Tensor) -> Tensor:
    """Fill boxes with one value per channel: ``value`` is ``(N, C)`` or ``(N, 1)``, converted to the dtype of ``x`` as
    an assignment does. Parts of boxes outside the image are ignored.
    """
    rows = _between(x.shape[-2], top, height)[:, None, :, None]
    columns = _between(x.shape[-1], left, width)[:, None, None, :]
    return torch.where(rows & columns, value[:, :, None, None].to(x.dtype), x)


def erased_packed(
    x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, values: Tensor, offsets: Tensor
) -> Tensor:
    """Fill boxes, which lie inside the images, with drawn values, one for each pixel and channel.

    ``values`` is flat: ``C * height * width`` values for each sample, channel by channel, row by row, which begin at
    the sample's index in ``offsets``.
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


# ---- operations


def erase(state: State, i: int, j: int, h: int, w: int, v: Tensor, inplace: bool = False) -> list[Op]:
    """Encode one value per channel as numbers, and drawn pixels as bulk."""
    if i < 0 or j < 0:
        raise NotRecordable("a box that begins outside of the image is erased")
    if v.numel() == 1 or (v.numel() == state.channels and v.shape[-1] == v.shape[-2] == 1):
        values = v.flatten().tolist()
        values = values * state.channels if len(values) == 1 else values
        return [state.op("erase", i, j, h, w, *values)]
    drawn = v.to(torch.float32).expand(state.channels, h, w)
    return [state.op("erase_drawn", i, j, h, w, bulk=drawn)]


def _laid(ops: Sequence[Op], places: Sequence[tuple[int, int, int]]) -> Laid:
    """Concatenate drawn values of different sizes, and append each sample's offset among them to its numbers."""
    rows, begin = [], 0
    for op in ops:
        assert op.bulk is not None
        rows.append((*op.numbers, begin))
        begin += op.bulk.numel()
    flat = torch.cat([op.bulk.reshape(-1) for op in ops if op.bulk is not None])
    numbers = Values(rows, (len(rows), len(rows[0])), torch.float64)
    return Laid(ops[0].static, numbers, Values(flat, (begin,), torch.float32))


def _erase(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    top, left, height, width = numbers[:, :4].unbind(1)
    return erased(x, top, left, height, width, numbers[:, 4:])


def _erase_drawn(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    top, left, height, width = numbers[:, :4].unbind(1)
    return erased_packed(x, top, left, height, width, bulk, numbers[:, 4].long())


OPERATIONS = (Operation("erase", _erase, exact), Operation("erase_drawn", _erase_drawn, exact, lay=_laid))
FUNCTIONALS = (Functional("erase", erase, in_place=5),)
OF_PICTURES = {"erase": erase}
