"""No kernel reads a value on the host, which would wait for the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pipediag.replay.ops import mixing
from pipediag.replay.ops.families import colour, erase, filters, pointwise

from ..waiting import synchronising_forbidden


def _erase_packed(x: Tensor, numbers: Tensor) -> Tensor:
    """Erase boxes with sides of 1, 2, 3 and 4 pixels, as far from the top and the left edge as they are large."""
    sizes = 3 * numbers * numbers
    values = torch.zeros(3 * (1 + 4 + 9 + 16), device=x.device)
    return erase.erased_packed(x, numbers, numbers, numbers, numbers, values, sizes.cumsum(0) - sizes)


#: Each with four images and the numbers 1 to 4.
KERNELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": colour.adjust_brightness,
    "contrast": colour.adjust_contrast,
    "saturation": colour.adjust_saturation,
    "hue": colour.adjust_hue,
    "gamma": lambda x, factor: colour.adjust_gamma(x, factor, gain=1.1),
    "solarize": colour.solarize,
    "posterize": colour.posterize,
    "invert": lambda x, _: colour.invert(x),
    "autocontrast": lambda x, _: colour.autocontrast(x),
    "equalize": lambda x, _: colour.equalize(x),
    "grayscale": lambda x, _: colour.grayscale(x, channels=3),
    "permute_channels": lambda x, numbers: colour.permuted(x, (0 * numbers)[:, None].expand(-1, 3)),
    "to_dtype": lambda x, _: pointwise.converted(x, torch.float16, scale=True),
    "to_uint8": lambda x, _: pointwise.converted(x, torch.uint8, scale=True),
    "normalize": lambda x, _: pointwise.normalized(x.float(), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    "blur": lambda x, factor: filters.gaussian_blur(x, factor[:, None].expand(-1, 2), kernel_size=(5, 3)),
    "sharpness": filters.adjust_sharpness,
    "noise": lambda x, _: filters.gaussian_noise(x, x.float(), sigma=0.1, mean=0.2, clip=False),
    "mixup": lambda x, _: mixing.mixup(x.float(), 0.3),
    "cutmix": lambda x, _: mixing.cutmix(x, (1, 2, 3, 4)),
    "erase": lambda x, numbers: erase.erased(x, numbers, numbers, numbers, numbers, numbers[:, None]),
    "erase_packed": _erase_packed,
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("name", KERNELS)
def test_no_value_is_read(name: str, dtype: torch.dtype) -> None:
    """Tensors on the meta device have no values, so a kernel that reads one fails; nor have fake ones."""
    fake = name == "blur"  # it turns autocast off, which the meta device has not
    with FakeTensorMode() if fake else nullcontext():
        device = "cpu" if fake else "meta"
        x, numbers = torch.empty((4, 3, 8, 9), dtype=dtype), torch.empty(4, dtype=torch.float64)
        KERNELS[name](x.to(device), numbers.to(device))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("name", KERNELS)
def test_nothing_synchronises(name: str, dtype: torch.dtype) -> None:
    x = torch.ones((4, 3, 8, 9), dtype=dtype, device="cuda")
    numbers = torch.arange(1, 5, dtype=torch.float64, device="cuda")
    with synchronising_forbidden():
        KERNELS[name](x, numbers)
