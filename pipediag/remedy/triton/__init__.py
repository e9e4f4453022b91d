"""Fused Triton kernels: the fast path on CUDA for the hot kernels of :mod:`pipediag.remedy.batched`.

Importing this package, and :mod:`~pipediag.remedy.triton.pixels` with the codes that workers write, does not import
triton. The other modules do: import them after :func:`available` has said yes.

Every kernel computes as ATen does on the CPU, which decides how products and sums are rounded. They are therefore
compiled with contraction off (``enable_fp_fusion=False``), and a fused multiply-add stands where ATen has one: where
vectorised code adds a scaled tensor (``vec::fmadd``), or where its compiler contracted a product and a sum.

None of them waits for the device, and launches go to the stream that is current on the device of their images.
"""

from __future__ import annotations

import functools
import importlib.util

import torch

_OLDEST_ARCHITECTURE = (7, 0)


@functools.cache
def available(device: torch.device) -> bool:
    """Whether the kernels run on ``device``: triton is there, and it is a CUDA GPU from compute capability 7.0."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    installed = importlib.util.find_spec("triton") is not None
    return installed and torch.cuda.get_device_capability(device) >= _OLDEST_ARCHITECTURE
