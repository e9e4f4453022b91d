"""What the tests of kernels share: settings, parameters for batches, and torchvision's kernels for one image."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def property_settings(examples: int) -> settings:
    """Return settings for property tests of kernels, with a fixture that gives the device."""
    ignored = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=min(examples, settings().max_examples), suppress_health_check=ignored)


def parameters(data: st.DataObject, x: Tensor, values: st.SearchStrategy[float]) -> Tensor:
    """Draw a number for each image of a batch."""
    return torch.tensor([data.draw(values) for _ in x], dtype=torch.float64)


def one_by_one(x: Tensor, kernel: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return what ``kernel`` gives for each image of a batch and its index."""
    return torch.stack([kernel(image, i) for i, image in enumerate(x)])


def with_numbers(x: Tensor, kernel: Callable[..., Tensor], *numbers: Tensor) -> Tensor:
    """Return what ``kernel`` gives for each image of a batch and its numbers, as Python's own."""
    return torch.stack([kernel(image, *(values[i].tolist() for values in numbers)) for i, image in enumerate(x)])


def fuses_multiply_add() -> bool:
    """Return whether this CPU adds a product with one rounding, as the kernels do everywhere."""
    a, b = torch.rand(2, 4096, generator=torch.Generator().manual_seed(0))
    return not torch.equal(a.add(b, alpha=0.3), a + b * 0.3)
