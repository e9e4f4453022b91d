"""Run a callable for one image on a whole batch, in one of several forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

#: One call for the batch, one call under ``torch.vmap``, or a call for each image.
How = Literal["batch", "vmap", "loop"]


def form(how: How, fn: Callable[[Tensor], Tensor], device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return ``fn``, which takes one image on ``device``, as a function of a batch ``(N, C, H, W)``; its results are
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
        with device, torch.autocast(device.type, enabled=False):
            return run(images.contiguous()).detach().as_subclass(Tensor).contiguous()

    return apply


def synchronises(apply: Callable[[Tensor], Tensor], images: Tensor, device: torch.device) -> bool:
    """Return whether the CPU waits for the device while ``apply`` runs on a batch of ``images``."""
    if device.type != "cuda":
        return False
    images = images.to(device)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        apply(images)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False
