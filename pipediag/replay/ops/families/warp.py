"""Apply affine, perspective and elastic warps to a whole batch, with a separate transform for each sample.

A warp is a grid, which gives for each pixel of the result its source position in the image, and ATen's ``grid_sample``.
The arithmetic of the grids is torchvision's, rounding by rounding, since nearest neighbours change with the last bit.
The numbers that describe the transforms are computed on the host, as in torchvision, and arrive as float64.

The functions of a batch take images ``(N, C, H, W)``, uint8 or floating, of any strides. ``fill`` is the value outside
the images: one number, or one for each channel. None differs from 0 only at the edges of bilinear images: their pixels
are multiplied by the coverage once for None, and twice for a number. Results are bit-equal on the CPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from ..arguments import fills, interpolation_name
from ..exactness import NEIGHBOUR, Deviation, Input, approximate
from ..op import NotRecordable, Op, State
from ..operation import Encode, Functional, Fused, Kernel, Operation, Static, drawn_first, from_triton
from .cropping import SIZES

Interpolation: TypeAlias = Literal["nearest", "bilinear"]
Fill: TypeAlias = float | Sequence[float] | None

INTERPOLATIONS = ("nearest", "bilinear")


def affine(
    x: Tensor, matrix: Tensor, *, interpolation: Interpolation, fill: Fill, size: tuple[int, int] | None = None
) -> Tensor:
    """Warp as ``affine_image`` of torchvision v2, or to another ``size`` as ``rotate_image`` when it interpolates.

    For quarter turns about the centre torchvision moves pixels without a grid (``torch.rot90``); the results are the
    same for uint8 and for nearest interpolation, and otherwise equal up to rounding. ``matrix`` is ``(N, 6)``, as
    :func:`affine_numbers` and :func:`rotate_numbers` return it.
    """
    height, width = x.shape[-2:]
    out_height, out_width = size or (height, width)
    dtype = _grid_dtype(x)
    across = torch.linspace((1 - out_width) * 0.5, (out_width - 1) * 0.5, out_width, device=x.device)
    down = torch.linspace((1 - out_height) * 0.5, (out_height - 1) * 0.5, out_height, device=x.device)
    grid = _products(across.to(dtype), down.to(dtype), _rescaled(matrix, height, width, dtype))
    return _sample(x, grid, interpolation, fill)


def perspective(x: Tensor, coefficients: Tensor, *, interpolation: Interpolation, fill: Fill) -> Tensor:
    """Warp as ``perspective_image`` of torchvision v2, with ``coefficients`` ``(N, 8)``.

    ``x = (ax + by + c) / (gx + hy + 1)``, ``y = (dx + ey + f) / (gx + hy + 1)``.
    """
    height, width = x.shape[-2:]
    dtype = _grid_dtype(x)
    across = torch.linspace(0.5, width - 0.5, width, dtype=dtype, device=x.device)
    down = torch.linspace(0.5, height - 0.5, height, dtype=dtype, device=x.device)
    numerator = _products(across, down, _rescaled(coefficients[:, :6], height, width, dtype))
    last = pad(coefficients[:, 6:].to(dtype), (0, 1), value=1.0)
    denominator = _products(across, down, last[:, :, None])
    return _sample(x, numerator.div_(denominator).sub_(1.0), interpolation, fill)


def elastic(x: Tensor, displacement: Tensor, *, interpolation: Interpolation, fill: Fill) -> Tensor:
    """Warp as ``elastic_image`` of torchvision v2, with ``displacement`` ``(N, H, W, 2)`` in half images."""
    samples, _, height, width = x.shape
    if displacement.shape != (samples, height, width, 2):
        raise ValueError(f"displacements of shape {tuple(displacement.shape)} for images of shape {tuple(x.shape)}")
    dtype = torch.float32 if x.dtype == torch.float16 else _grid_dtype(x)  # as torchvision does on the CPU
    across = torch.linspace((1 - width) / width, (width - 1) / width, width, dtype=dtype, device=x.device)
    down = torch.linspace((1 - height) / height, (height - 1) / height, height, dtype=dtype, device=x.device)
    identity = torch.stack((across.expand(height, -1), down[:, None].expand(-1, width)), -1)
    return _sample(x, identity + displacement.to(dtype), interpolation, fill)


def _grid_dtype(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.float32


def _rescaled(matrix: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return factors ``(N, 3, 2)`` to positions in units of half the image, for matrices ``(N, 6)`` to positions in
    pixels.

    The divisor is a tensor because CUDA divides by a Python number as a multiplication by its reciprocal.
    """
    halves = torch.full((2,), 0.5 * height, dtype=dtype, device=matrix.device)
    halves[0].fill_(0.5 * width)
    return matrix.to(dtype).view(-1, 2, 3).transpose(1, 2) / halves


def _products(across: Tensor, down: Tensor, factors: Tensor) -> Tensor:
    """Return ``(x, y, 1) @ factors`` as ``(N, H, W, k)`` for all x in ``across`` ``(W,)`` and y in ``down`` ``(H,)``,
    with ``factors`` ``(N, 3, k)`` and k up to 2.

    On the CPU this is torchvision's own matrix product, which rounds as its library does on this processor. On other
    devices, products and sums are computed one by one and rounded in the same way, independent of TF32.
    """
    if across.device.type == "cpu":
        return _matrix_products(across, down, factors)
    return _plain_products(across, down, factors, fused=cpu_fuses_products())


@functools.cache
def cpu_fuses_products() -> bool:
    """Return whether torchvision's matrix product for grids rounds a product and a sum only once on this CPU."""
    places = torch.arange(64, dtype=torch.float32, device="cpu") - 31.5
    factors = torch.tensor([[[0.0311, 0.0097], [-0.0173, 0.0211], [0.0057, -0.0071]]], device="cpu")
    return not torch.equal(_matrix_products(places, places, factors), _plain_products(places, places, factors, False))


def _matrix_products(across: Tensor, down: Tensor, factors: Tensor) -> Tensor:
    width, height, columns = len(across), len(down), factors.shape[2]
    ones = torch.ones((height, width), dtype=across.dtype, device=across.device)
    points = torch.stack((across.expand(height, -1), down[:, None].expand(-1, width), ones), -1).view(1, -1, 3)
    # Always two columns, as in torchvision: a matrix with one may be rounded differently.
    products = points.expand(len(factors), -1, -1).bmm(factors.expand(-1, -1, 2))
    return products.view(-1, height, width, 2)[..., :columns]


def _plain_products(across: Tensor, down: Tensor, factors: Tensor, fused: bool) -> Tensor:
    dtype = factors.dtype
    wide = torch.promote_types(dtype, torch.float32)  # matrix products of half precision are summed in float32
    x, y, one = factors.to(wide)[:, :, None, None].unbind(1)
    horizontal, down = across.to(wide)[:, None] * x, down.to(wide)[:, None, None]
    if fused and wide == torch.float32:
        # A product of two float32 numbers is exact in float64, so only the sum is rounded.
        total = (down.double() * y.double() + horizontal.double()).float()
    else:
        total = horizontal + down * y
    return total.add_(one).to(dtype)


def _sample(x: Tensor, grid: Tensor, interpolation: str, fill: Fill) -> Tensor:
    """Return the pixels of ``x`` at the positions of ``grid`` ``(N, H', W', 2)``, computed in the dtype of the grid."""
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"interpolation {interpolation!r} is not one of {INTERPOLATIONS}")
    fills = _fills(fill, x.shape[1])
    pixels = x.to(grid.dtype)
    warped = _grid_sample(pixels, grid, interpolation)
    whole = interpolation == "nearest" and all(value.is_integer() for value in fills)
    if fill is not None and (interpolation == "bilinear" or any(fills)):
        # All samples share one mask, so the images need not be copied to add it as a channel.
        mask = torch.ones((1, 1, 1, 1), dtype=grid.dtype, device=x.device).expand(len(x), 1, *x.shape[2:])
        inside = _grid_sample(mask, grid, interpolation)
        colour = _colour(fills, warped)
        if interpolation == "nearest":
            warped = torch.where(inside < 0.5, colour, warped)
        else:
            warped = warped.sub_(colour).mul_(inside).add_(colour)
    if not x.is_floating_point() and not whole:
        warped = warped.round_()
    return warped.to(x.dtype)


def _grid_sample(pixels: Tensor, grid: Tensor, interpolation: str) -> Tensor:
    return grid_sample(pixels, grid, mode=interpolation, padding_mode="zeros", align_corners=False)


def _fills(fill: Fill, channels: int) -> tuple[float, ...]:
    values = tuple(float(value) for value in fill) if isinstance(fill, Sequence) else (float(fill or 0),)
    if len(values) not in (1, channels):
        raise ValueError(f"{len(values)} fills for images with {channels} channels")
    return values


def _colour(fills: tuple[float, ...], like: Tensor) -> Tensor:
    """Return the fills as ``(1, C, 1, 1)``, or as one channel if all are equal.

    They are made of constants, which are passed as kernel arguments, since a copy from the host would block it.
    """
    distinct = fills[:1] if len(set(fills)) == 1 else fills
    channels = [torch.full((1, 1, 1, 1), value, dtype=like.dtype, device=like.device) for value in distinct]
    return torch.cat(channels, 1) if len(channels) > 1 else channels[0]


# ---- numbers of a warp


def affine_numbers(
    height: int,
    width: int,
    angle: float,
    translate: Sequence[float],
    scale: float,
    shear: Sequence[float],
    center: Sequence[float] | None,
) -> tuple[float, ...]:
    """Return the six numbers of :func:`affine` from the arguments of torchvision's function of that name."""
    if scale <= 0:
        raise ValueError(f"a scale of {scale}, where it must be positive")
    return _inverse_matrix(_from_centre(height, width, center), angle, translate, scale, shear)


def rotate_numbers(
    height: int, width: int, angle: float, expand: bool, center: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[int, int]]:
    """Return the six numbers of :func:`affine`, and height and width of the result, for torchvision's ``rotate``.

    Not for quarter turns about the centre: torchvision does not interpolate them, and its result may have another size.
    """
    matrix = _inverse_matrix(_from_centre(height, width, center), -(angle % 360), (0.0, 0.0), 1.0, (0.0, 0.0))
    return matrix, _expanded(matrix, height, width) if expand else (height, width)


def perspective_numbers(
    startpoints: Sequence[Sequence[int]] | None,
    endpoints: Sequence[Sequence[int]] | None,
    coefficients: Sequence[float] | None,
) -> tuple[float, ...]:
    """Return the eight numbers of :func:`perspective`: ``coefficients``, or those that map the corners ``endpoints`` to
    ``startpoints``.

    They solve a system of equations by least squares in float64, and are rounded to float32.
    """
    if coefficients is not None and startpoints is None and endpoints is None and len(coefficients) == 8:
        return tuple(float(value) for value in coefficients)
    if coefficients is not None or startpoints is None or endpoints is None:
        raise ValueError("a perspective is either two lists of four corners or eight coefficients")
    if len(startpoints) != 4 or len(endpoints) != 4:
        raise ValueError(f"{len(startpoints)} and {len(endpoints)} corners, where four and four are needed")
    equations = torch.zeros((8, 8), dtype=torch.float64, device="cpu")
    for corner, ((x, y), (to_x, to_y)) in enumerate(zip(endpoints, startpoints, strict=True)):
        # Make each row a separate tensor first: torchvision rounds a row with a non-integer number to float32.
        equations[2 * corner] = torch.tensor([x, y, 1, 0, 0, 0, -to_x * x, -to_x * y], device="cpu")
        equations[2 * corner + 1] = torch.tensor([0, 0, 0, x, y, 1, -to_y * x, -to_y * y], device="cpu")
    moved_to = torch.tensor(startpoints, dtype=torch.float64, device="cpu").view(8)
    solution = torch.linalg.lstsq(equations, moved_to, driver="gels").solution
    return tuple(solution.to(torch.float32).tolist())


def _from_centre(height: int, width: int, center: Sequence[float] | None) -> tuple[float, float]:
    return (0.0, 0.0) if center is None else (center[0] - width * 0.5, center[1] - height * 0.5)


def _inverse_matrix(
    centre: tuple[float, float],
    angle: float,
    translate: Sequence[float],
    scale: float,
    shear: Sequence[float],
) -> tuple[float, ...]:
    """Return two rows that map a position in the warped image to one in the image, both relative to its centre.

    The warp is a shear along x, a shear along y, the scale, the rotation about ``centre`` and the translation, in this
    order. Formula: ``_get_inverse_affine_matrix``.
    """
    turn, shear_x, shear_y = (math.radians(degrees) for degrees in (angle, *shear))
    lean = math.tan(shear_x)
    xx = math.cos(turn - shear_y) / math.cos(shear_y)
    yx = math.sin(turn - shear_y) / math.cos(shear_y)
    xy = -(xx * lean + math.sin(turn))
    yy = math.cos(turn) - yx * lean
    to_x, to_y = centre[0] + translate[0], centre[1] + translate[1]
    # Rotation and shears preserve areas, so their inverse needs no division by a determinant.
    first, second = (yy / scale, -xy / scale), (-yx / scale, xx / scale)
    return (
        *first,
        centre[0] - first[0] * to_x - first[1] * to_y,
        *second,
        centre[1] - second[0] * to_x - second[1] * to_y,
    )


def _expanded(matrix: tuple[float, ...], height: int, width: int) -> tuple[int, int]:
    """Return height and width that hold all of a rotated image. Formula: ``_compute_affine_output_size``."""
    half_width, half_height = 0.5 * width, 0.5 * height
    corners = [[x, y, 1.0] for x in (-half_width, half_width) for y in (-half_height, half_height)]
    rows = torch.tensor(matrix, dtype=torch.float32, device="cpu").view(2, 3)
    turned = torch.matmul(torch.tensor(corners, dtype=torch.float32, device="cpu"), rows.T)
    halves = torch.tensor((half_width, half_height), dtype=torch.float32, device="cpu")
    low, high = ((edge + halves).mul_(1e4).trunc_().mul_(1e-4) for edge in turned.aminmax(dim=0))
    out_width, out_height = (high.ceil_() - low.floor_()).tolist()
    return int(out_height), int(out_width)


# ---- operations


def prepare_affine(state: State, interpolation: Any = "nearest", fill: Any = None, center: Any = None) -> Encode:
    op = state.op("affine", static=_warped(state, interpolation, fill))

    def encode(angle: float, translate: Any, scale: float, shear: Any) -> list[Op]:
        shears = (float(shear), 0.0) if isinstance(shear, (int, float)) else tuple(float(s) for s in shear)
        shears = (shears[0], shears[0]) if len(shears) == 1 else shears
        return [op.given(*affine_numbers(*state.size, angle, tuple(translate), scale, shears, center))]

    return encode


def prepare_rotate(
    state: State, interpolation: Any = "nearest", expand: bool = False, center: Any = None, fill: Any = None
) -> Encode:
    @functools.lru_cache(SIZES)
    def sized(size: tuple[int, int]) -> Op:
        return state.op("rotate", static=(*size, *_warped(state, interpolation, fill)), shape=state.resized(*size))

    def encode(angle: float) -> list[Op]:
        turns = _quarter_turns(state, angle, expand, center)
        if turns is not None:
            height, width = state.size if turns % 2 == 0 else state.size[::-1]
            return [state.op("turn", static=(turns,), shape=state.resized(height, width))] if turns else []
        numbers, size = rotate_numbers(*state.size, angle, expand, center)
        return [sized(size).given(*numbers)]

    return encode


def _quarter_turns(state: State, angle: float, expand: bool, center: Any) -> int | None:
    """Return the number of 90-degree turns that torchvision makes without interpolation, or None if it interpolates."""
    angle = angle % 360
    if center is not None or angle % 90:
        return None
    turns = int(angle // 90)
    square = state.size[0] == state.size[1]
    return turns if turns % 2 == 0 or expand or square else None


def _warped(state: State, interpolation: Any, fill: Any) -> tuple[Any, ...]:
    mode = "nearest" if state.mask else interpolation_name(interpolation)
    if mode not in ("nearest", "bilinear"):
        raise NotRecordable(f"interpolation={mode!r} is not for tensors here")
    return mode, fills(fill)


def encode_perspective(
    state: State,
    startpoints: Any,
    endpoints: Any,
    interpolation: Any = "bilinear",
    fill: Any = None,
    coefficients: Any = None,
) -> list[Op]:
    return prepare_perspective(state, startpoints, endpoints, interpolation, fill)(coefficients)


def prepare_perspective(
    state: State, startpoints: Any, endpoints: Any, interpolation: Any = "bilinear", fill: Any = None
) -> Encode:
    op = state.op("perspective", static=_warped(state, interpolation, fill))
    return lambda coefficients: [op.given(*perspective_numbers(startpoints, endpoints, coefficients))]


def encode_elastic(state: State, displacement: Tensor, interpolation: Any = "bilinear", fill: Any = None) -> list[Op]:
    height, width = state.size
    if tuple(displacement.shape) != (1, height, width, 2):
        raise NotRecordable(f"a displacement of shape {tuple(displacement.shape)} does not fit the image")
    static = _warped(state, interpolation, fill)
    return [state.op("elastic", static=static, bulk=displacement[0].to(torch.float32))]


def warped(kernel: Callable[..., Tensor]) -> Kernel:
    """Wrap a warp whose result has the size of its input."""

    def call(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
        interpolation, fill = static
        return kernel(x, numbers, interpolation=interpolation, fill=fill)

    return call


def warped_to_size(kernel: Callable[..., Tensor]) -> Kernel:
    """Wrap a warp whose result has a size of its own."""

    def call(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
        height, width, interpolation, fill = static
        return kernel(x, numbers, size=(height, width), interpolation=interpolation, fill=fill)

    return call


def _elastic(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    interpolation, fill = static
    return elastic(x, bulk, interpolation=interpolation, fill=fill)


def _rule(op: Op, given: Input) -> Deviation:
    return NEIGHBOUR if "nearest" in op.static else approximate(op, given)


_FUSED_AFFINE = from_triton("warp", "affine")
OPERATIONS = (
    Operation("affine", warped(affine), _rule, fused=Fused(Operation("fast_affine", warped(_FUSED_AFFINE)))),
    Operation(
        "rotate", warped_to_size(affine), _rule, fused=Fused(Operation("fast_rotate", warped_to_size(_FUSED_AFFINE)))
    ),
    Operation(
        "perspective",
        warped(perspective),
        _rule,
        fused=Fused(Operation("fast_perspective", warped(from_triton("warp", "perspective")))),
    ),
    Operation("elastic", _elastic, _rule),
)
FUNCTIONALS = (
    drawn_first("affine", prepare_affine, "angle", "translate", "scale", "shear"),
    drawn_first("rotate", prepare_rotate, "angle"),
    Functional("perspective", encode_perspective, prepare_perspective, ("coefficients",)),
    Functional("elastic", encode_elastic, aliases=("elastic_transform",)),
)
OF_PICTURES = {"elastic": encode_elastic}
