"""Run a callable for one image on a whole batch on the device, in one of several forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

#: One call for the batch, one call under ``torch.vmap``, or a call for each image.
How = Literal["batch", "vmap", "loop"]


class OnDevice(TorchFunctionMode):  # type: ignore[misc]
    """Replacement of ``tensors``, wherever a function of torch gets them, by copies on the device."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        super().__init__()
        self._originals = tensors  # their ids stay in use
        self._copies = {id(tensor): tensor.detach().to(device, copy=True) for tensor in tensors}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Tensor, self._on_device, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _on_device(self, tensor: Tensor) -> Tensor:
        return self._copies.get(id(tensor), tensor)


def form(how: How, fn: Callable[[Tensor], Tensor], held: OnDevice, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return ``fn``, which takes one image, as a function of a batch ``(N, C, H, W)`` on ``device``; its results are
    stacked."""

    def batch(images: Tensor) -> Tensor:
        result = fn(images)
        if result.shape[:1] != images.shape[:1]:
            raise RuntimeError(f"a batch of shape {tuple(images.shape)} gave a result of shape {tuple(result.shape)}")
        return result

    def loop(images: Tensor) -> Tensor:
        return torch.stack([fn(image) for image in images.unbind(0)])

    run = {"batch": batch, "vmap": torch.vmap(fn), "loop": loop}[how]

    def apply(images: Tensor) -> Tensor:
        # Tensors that fn creates from numbers (a mean, a grid) must be on the device. A loop under autocast must get
        # the results that were proven without it. A result that vmap expanded to all samples could not be written to.
        with device, torch.autocast(device.type, enabled=False), held:
            return run(images.contiguous()).detach().as_subclass(Tensor).contiguous()

    return apply
