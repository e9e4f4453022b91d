"""Make a call on tensors by its name: rearrange pixels (permute, slice, join, write into a tensor), or compute them one
by one (:mod:`.elementwise`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .elementwise import divided, put


def arranged(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a method of tensors, a function of torch, or one of :data:`_OTHERS`, by its name."""
    function = _OTHERS.get(name) or getattr(Tensor, name, None) or getattr(torch, name)
    return function(*args, **kwargs)


def written(into: Any, shape: Sequence[int], regions: Sequence[Any], images: Sequence[Tensor]) -> Tensor:
    """Return a tensor with images in its regions, each a size, strides and an offset.

    ``into`` is the tensor, which is not written into, or the value that it is filled with.
    """
    like = images[0]
    if isinstance(into, Tensor):
        made = into.to(like.device, copy=True)
    else:
        made = torch.full(tuple(shape), into, dtype=like.dtype, device=like.device)
    for region, image in zip(regions, images, strict=True):
        made.as_strided(*region).copy_(image)
    return made


_OTHERS = {
    "written": written,
    "put": put,
    "div": divided,
    "where": torch.where,
    "pad": torch.nn.functional.pad,
    "pad_sequence": torch._C._nn.pad_sequence,
}
