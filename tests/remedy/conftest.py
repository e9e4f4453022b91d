"""Kernels and replay are tested on the CPU and, where there is one, on the GPU."""

from __future__ import annotations

import pytest
import torch

CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
