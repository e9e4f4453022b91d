"""Say of each op whether it gives the CPU's pixels by construction, or how far they may be off.

A certificate only compares samples. On other samples an op is exact if it copies pixels, computes in integers, or
rounds each step once, in the order of torchvision's function on the CPU or of Pillow's. The other ops call the CPU's
power function, or take sums whose order the CPU's library chooses. Such a sum may be rounded to the next level, and a
warp may pick the neighbour of a pixel.

``tests/replay/ops/test_exactness.py`` compares every op that is called exact here with torchvision, on random images.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch

from .kernels import in_fixed_point
from .op import Op, Shape

#: How far an op's pixels may be off; None if they are equal by construction.
Deviation: TypeAlias = str | None

ONE_LEVEL = "by one level"
LAST_DIGITS = "in the last digits"
NEIGHBOUR = "by a neighbouring pixel"
UNBOUNDED = "without a known bound"


class Input(NamedTuple):
    """Image to which an op is applied."""

    shape: Shape
    dtype: torch.dtype
    by: Literal["v2", "v1", "pillow"] = "v2"  # whose function the op replays: torchvision's, or Pillow's


Rule: TypeAlias = Callable[[Op, Input], Deviation]


def deviations(ops: Sequence[Op], given: Input) -> list[str]:
    """Return how far the pixels may be from the CPU's after ``ops``, one for each op that is not exact."""
    rules = {**RULES, **RULES_OF_V1} if given.by == "v1" else RULES
    found = []
    for op in ops:
        off = rules.get(op.name, _unbounded)(op, given)
        found += [off] if off else []
        given = Input(op.shape, op.dtype, given.by)
    return found


def _always(deviation: Deviation) -> Rule:
    return lambda op, given: deviation


_exact = _always(None)
_unbounded = _always(UNBOUNDED)


def _rounded_once(op: Op, given: Input) -> Deviation:
    """Return exact, except for half precision and float64, which were not compared."""
    return None if given.dtype in (torch.uint8, torch.float32) else LAST_DIGITS


def _approximate(op: Op, given: Input) -> Deviation:
    return LAST_DIGITS if given.dtype.is_floating_point else ONE_LEVEL


def _blended(op: Op, given: Input) -> Deviation:
    """Return exact if the CPU rounds a product and a sum once, as the kernels do."""
    return _rounded_once(op, given) if _cpu_fuses(alike=False) else _approximate(op, given)


def _blended_with_mean(op: Op, given: Input) -> Deviation:
    pixels = given.shape[-2] * given.shape[-1]
    fits = pixels * 255 < 2**24  # a float32 holds the sum of these bytes
    fused = _cpu_fuses(alike=True) or torch.Size(given.shape).numel() % _VECTOR == 0
    return _blended(op, given) if given.dtype == torch.uint8 and fits and fused else _approximate(op, given)


def _sharpened(op: Op, given: Input) -> Deviation:
    """Return exact for bytes: their smoothed sum is a whole number in any order."""
    return _blended(op, given) if given.dtype == torch.uint8 else _approximate(op, given)


def _resized(op: Op, given: Input) -> Deviation:
    _, _, interpolation, _, fixed, pillow = op.static
    in_integers = pillow is not None or (given.dtype == torch.uint8 and in_fixed_point(interpolation, fixed))
    return None if in_integers or interpolation.startswith("nearest") else _approximate(op, given)


def _warped(op: Op, given: Input) -> Deviation:
    return NEIGHBOUR if "nearest" in op.static else _approximate(op, given)


#: By the name of the op. No bound is known for any other, such as the user's own code.
RULES: dict[str, Rule] = {
    # pixels are copied
    "horizontal_flip": _exact,
    "vertical_flip": _exact,
    "turn": _exact,
    "crop": _exact,
    "pad": _exact,
    "erase": _exact,
    "erase_drawn": _exact,
    "permute_channels": _exact,
    # Pillow's arithmetic, step by step
    "pillow_adjust_brightness": _exact,
    "pillow_adjust_contrast": _exact,
    "pillow_adjust_saturation": _exact,
    "pillow_adjust_hue": _exact,
    "pillow_adjust_sharpness": _exact,
    "pillow_autocontrast": _exact,
    "pillow_grayscale": _exact,
    "pillow_point": _exact,
    "pillow_smooth": _exact,
    "pillow_box_blur": _exact,
    "pillow_pick": _exact,
    "pillow_affine_in_fixed_point": _exact,
    "pillow_affine": _exact,
    "pillow_perspective": _exact,
    # torchvision's arithmetic, step by step
    "to_dtype": _exact,
    "normalize": _rounded_once,
    "invert": _rounded_once,
    "posterize": _rounded_once,
    "solarize": _rounded_once,
    "equalize": _rounded_once,
    "autocontrast": _rounded_once,
    "adjust_brightness": _rounded_once,
    "adjust_hue": _rounded_once,
    "gaussian_noise": _rounded_once,
    "grayscale": _blended,
    "adjust_saturation": _blended,
    "adjust_contrast": _blended_with_mean,
    "adjust_sharpness": _sharpened,
    "resample": _resized,
    # sums in another order, functions of another library
    "adjust_gamma": _approximate,
    "gaussian_blur": _approximate,
    "affine": _warped,
    "rotate": _warped,
    "perspective": _warped,
    "elastic": _warped,
}

#: Functions of v1 that round differently from those of v2, whose arithmetic the kernels repeat.
RULES_OF_V1: dict[str, Rule] = {
    "turn": _always(NEIGHBOUR),
    "grayscale": _approximate,
    "autocontrast": _approximate,
    "adjust_hue": _approximate,
    "adjust_saturation": _approximate,
    "adjust_contrast": _approximate,
    "adjust_sharpness": _approximate,
}

#: Vectorized code on the CPU takes two vectors of up to 16 numbers at a time, and the rest one by one.
_VECTOR = 32


@functools.cache
def _cpu_fuses(alike: bool) -> bool:
    """Return whether torch on this CPU rounds ``x + factor * y`` only once, also for the last pixels, which fill no
    vector. If ``y`` is one number for all pixels (``alike``), that depends on the release."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(16):
        x, y = torch.rand(2, 3, 5, 19, generator=generator)
        y = y[:1, :1, :1] if alike else y[:1]
        once = x.double().add_(y.double(), alpha=0.25 + 2**-20).float()
        if not torch.equal(x.add(y, alpha=0.25 + 2**-20), once):
            return False
    return True
