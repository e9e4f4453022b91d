"""Provide fused Triton kernels: the fast path on CUDA for the hot kernels of :mod:`pipediag.replay.ops.families`.

Importing this package, or :mod:`~pipediag.replay.ops.triton.pixels` with the codes that workers write, does not import
triton. The other modules do: import them only if :func:`available` returns True.

Every kernel rounds products and sums as ATen does on the CPU. So the kernels are compiled with contraction off
(``enable_fp_fusion=False``), and use a fused multiply-add exactly where ATen does: where vectorised code adds a scaled
tensor (``vec::fmadd``), or where its compiler contracted a product and a sum.

No kernel waits for the device, and launches go to the current stream of their images' device.
"""

from __future__ import annotations

import functools
import importlib.util

import torch

_OLDEST_ARCHITECTURE = (7, 0)


@functools.cache
def available(device: torch.device) -> bool:
    """Return whether the kernels run on ``device``: triton is installed, and it is a CUDA GPU of compute capability >=
    7.0."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    installed = importlib.util.find_spec("triton") is not None
    return installed and torch.cuda.get_device_capability(device) >= _OLDEST_ARCHITECTURE
