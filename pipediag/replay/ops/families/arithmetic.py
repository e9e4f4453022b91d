"""Do the arithmetic that plain code does on images: with a number, or with one value for each channel.

Only float32 is computed, and bytes that torch converts to it. Each function rounds once, as on the CPU, but for powers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..exactness import approximate, exact
from ..op import NotRecordable, Op, State
from ..operation import Functional, Operation, Static

_ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "rsub": torch.rsub,
    "mul": torch.mul,
    "div": torch.div,
}


def _kernel(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    return _ARITHMETIC[static[0]](x.to(torch.float32), numbers.to(torch.float32)[:, :, None, None])


def _clamped(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    low, high = numbers.to(torch.float32)[:, :, None, None, None].unbind(1)
    return x.maximum(low).minimum(high)


def _encoded(name: str, state: State, value: Any, **options: Any) -> list[Op]:
    becomes_float = name == "div" or isinstance(value, float)
    computed = state.dtype == torch.float32 or (state.dtype == torch.uint8 and becomes_float)
    if options or not computed or torch.get_default_dtype() != torch.float32:
        raise NotRecordable(
            f"{name} of {state.dtype} images is not recorded with this value: convert them before, with "
            "torchvision.transforms.v2.functional.to_dtype(image, torch.float32, scale=True)"
        )
    values = _values(name, state, value)  # images that take one value and those that take several are no group
    return [state.op("arithmetic", *values, static=(name, len(values)), dtype=torch.float32)]


def _values(name: str, state: State, value: Any) -> list[float]:
    """Return the value, or one for each channel."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [float(value)]
    if type(value) is Tensor and value.is_cpu and value.dtype == torch.float32 and not value.requires_grad:
        shape = tuple(value.shape)
        if value.numel() == 1 and len(shape) <= len(state.shape):
            return [value.item()]
        if shape == (state.channels, 1, 1) and len(state.shape) > 2:
            return [float(one) for one in value.flatten().tolist()]
    raise NotRecordable(
        f"{name} is recorded with a number or with a float32 tensor of one value for each channel, (C, 1, 1), on one "
        "image: with anything else, do it on the batch, behind the loader"
    )


def _clamp(state: State, min: Any = None, max: Any = None) -> list[Op]:
    numbers = [value for value in (min, max) if isinstance(value, (int, float)) and value == value]
    if len(numbers) < 2 or state.dtype != torch.float32:
        raise NotRecordable("clamp is recorded with two numbers, of float32 images")
    return [state.op("clamp", *map(float, numbers))]


def _power(state: State, exponent: Any) -> list[Op]:
    number = isinstance(exponent, (int, float)) and not isinstance(exponent, bool)
    if not number or state.dtype != torch.float32:
        raise NotRecordable("pow is recorded with a number, of float32 images")
    return [state.op("power", float(exponent))]


def _raised(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    return x.pow(numbers.to(torch.float32)[:, :, None, None])


OPERATIONS = (
    Operation("arithmetic", _kernel, exact),
    Operation("clamp", _clamped, exact, each_pixel=True),
    Operation("power", _raised, approximate, each_pixel=True),
)
FUNCTIONALS = (
    *(Functional(name, partial(_encoded, name)) for name in _ARITHMETIC),
    Functional("clamp", _clamp),
    Functional("pow", _power),
)
