"""Make the calls of plain code on tensors again, by name: what rearranges pixels, and what computes them one by one.

The device makes the same call on the images of a whole batch. Every function here gives the CPU's bits on every device:
it copies, works on whole numbers, chooses, or rounds once. :func:`refusal` says which arguments of arithmetic,
comparisons and choices are left out because that would not hold, or because the call may fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_KNOWN = _WHOLE | {torch.bool, torch.float32}


class Elementwise(NamedTuple):
    """A function of single pixels."""

    methods: tuple[str, ...]  # the tensors' methods that compute it, and functions of torch of the same names
    writing: tuple[str, ...] = ()  # the methods that write the result into their tensor
    decides: bool = False  # whether a small difference of a pixel may change the result altogether
    whole: bool = False  # whether it takes whole numbers only, and divides by a number


#: By the name of the function that the device calls.
ELEMENTWISE: dict[str, Elementwise] = {
    "add": Elementwise(("add", "__add__", "__radd__"), ("add_", "__iadd__")),
    "sub": Elementwise(("sub", "subtract", "__sub__"), ("sub_", "subtract_", "__isub__")),
    "rsub": Elementwise(("rsub", "__rsub__")),
    "mul": Elementwise(("mul", "multiply", "__mul__", "__rmul__"), ("mul_", "multiply_", "__imul__")),
    "div": Elementwise(
        ("div", "divide", "true_divide", "__truediv__", "__div__"), ("div_", "divide_", "__itruediv__", "__idiv__")
    ),
    "floor_divide": Elementwise(("floor_divide", "__floordiv__"), whole=True, decides=True),
    "remainder": Elementwise(("remainder", "__mod__"), whole=True, decides=True),
    "neg": Elementwise(("neg", "negative", "__neg__"), ("neg_", "negative_")),
    "abs": Elementwise(("abs", "absolute", "__abs__"), ("abs_", "absolute_")),
    "clamp": Elementwise(("clamp", "clip"), ("clamp_", "clip_")),
    "minimum": Elementwise(("minimum",)),
    "maximum": Elementwise(("maximum",)),
    "gt": Elementwise(("gt", "greater", "__gt__"), decides=True),
    "ge": Elementwise(("ge", "greater_equal", "__ge__"), decides=True),
    "lt": Elementwise(("lt", "less", "__lt__"), decides=True),
    "le": Elementwise(("le", "less_equal", "__le__"), decides=True),
    "eq": Elementwise(("eq", "__eq__"), decides=True),
    "ne": Elementwise(("ne", "not_equal", "__ne__"), decides=True),
    "logical_and": Elementwise(("logical_and",), decides=True),
    "logical_or": Elementwise(("logical_or",), decides=True),
    "logical_xor": Elementwise(("logical_xor",), decides=True),
    "logical_not": Elementwise(("logical_not",), decides=True),
    "bitwise_and": Elementwise(("bitwise_and", "__and__"), decides=True),
    "bitwise_or": Elementwise(("bitwise_or", "__or__"), decides=True),
    "bitwise_xor": Elementwise(("bitwise_xor", "__xor__"), decides=True),
    "bitwise_not": Elementwise(("bitwise_not", "__invert__"), decides=True),
    "where": Elementwise(()),
    "masked_fill": Elementwise(("masked_fill",), ("masked_fill_",)),
}


def refusal(name: str, args: Sequence[Any]) -> str:
    """Return why a call with these arguments, tensors and numbers, may give other values on a device; "" if not."""
    dtypes = {arg.dtype for arg in args if isinstance(arg, Tensor)}
    numbers = [arg for arg in args if not isinstance(arg, Tensor) and arg is not None]
    if not dtypes <= _KNOWN or (ELEMENTWISE[name].whole and not dtypes <= _WHOLE):
        return f"of {', '.join(sorted(map(str, dtypes)))}"
    if not all(isinstance(number, (int, float)) for number in numbers):
        return "with something else than a number or a tensor"
    if torch.get_default_dtype() != torch.float32:
        return "with another default dtype than torch.float32"
    ranges = [torch.iinfo(dtype) for dtype in dtypes & _WHOLE]
    if any(isinstance(one, int) and not each.min <= one <= each.max for one in numbers for each in ranges):
        return "with a number that its dtype does not hold"
    if name == "masked_fill" and ranges and any(isinstance(number, float) for number in numbers):
        return "with a fraction among whole numbers"
    if name == "clamp" and not all(math.isfinite(number) for number in numbers):
        return "with a bound that is not finite"
    if ELEMENTWISE[name].whole and not (len(numbers) == 1 and isinstance(numbers[0], int) and numbers[0] > 0):
        return "by something else than a positive whole number"
    return ""


def divided(x: Any, y: Any) -> Tensor:
    """Divide as the CPU: on a GPU, division by a number would become a multiplication with its inverse."""
    if isinstance(x, Tensor) and not isinstance(y, Tensor):
        y = torch.full((), y, dtype=torch.float32, device=x.device)
    return torch.div(x, y)


def put(into: Tensor, index: Any, value: Any) -> Tensor:
    """Return a tensor with ``value`` written at ``index``, which selects no pixel twice."""
    made = into.clone()
    made[index] = value
    return made


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
