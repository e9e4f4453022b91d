"""What the tests of kernels share: settings, parameters for batches, and torchvision's kernels for one image."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


_SIDES = st.integers(1, 20)
#: Kinds of images of few values: the number of steps from black to white.
_STEPS = {"levels": (255,), "black and white": (1,), "few values": (3, 5)}
#: What tells kernels of pictures apart: sums of few greys often end halfway between two levels.
GREYS = (*_STEPS,)


@st.composite
def images(
    draw: st.DrawFn,
    dtypes: Sequence[torch.dtype] = (torch.uint8, *FLOATS),
    channels: Sequence[int] = (1, 3),
    sides: st.SearchStrategy[int] = _SIDES,
    kinds: Sequence[str] = ("noise", "flat", "black and white"),
) -> Tensor:
    """Batches of images, also grey ones, and floats beyond the range, if ``kinds`` says so; in both layouts."""
    shape = (draw(st.integers(1, 4)), draw(st.sampled_from(channels)), draw(sides), draw(sides))
    x = torch.rand(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 2**32))))
    kind, dtype = draw(st.sampled_from(kinds)), draw(st.sampled_from(dtypes))
    if kind == "grey":
        x = x[:, :1].expand(shape)
    elif kind == "flat":
        x = x[:, :, :1, :1].expand(shape)
    elif kind in _STEPS:
        steps = draw(st.sampled_from(_STEPS[kind]))
        x = (x * steps).round() / steps
    elif kind == "beyond" and dtype != torch.uint8:
        x = x * 1.4 - 0.2
    x = (x * 255).round() if dtype == torch.uint8 else x
    return x.to(dtype).contiguous(memory_format=draw(st.sampled_from([torch.contiguous_format, torch.channels_last])))


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
