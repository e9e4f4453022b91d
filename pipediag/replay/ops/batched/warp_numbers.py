"""Compute the numbers that describe a warp of :mod:`.warp` from the arguments of torchvision's function, on the host.

The arithmetic is torchvision's, step by step (``transforms/v2/functional/_geometry.py``), since nearest neighbours
change with the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def affine_numbers(
    height: int,
    width: int,
    angle: float,
    translate: Sequence[float],
    scale: float,
    shear: Sequence[float],
    center: Sequence[float] | None,
) -> tuple[float, ...]:
    """Return the six numbers that :func:`.warp.affine` takes for an image of ``height`` by ``width``.

    The other arguments are those of torchvision's ``affine``: ``angle`` and ``shear`` (along x and y) in degrees,
    ``translate`` and ``center`` as x and y in pixels.

    Raises:
        ValueError: the scale is not positive.
    """
    if scale <= 0:
        raise ValueError(f"a scale of {scale}, where it must be positive")
    return _inverse_matrix(_from_centre(height, width, center), angle, translate, scale, shear)


def rotate_numbers(
    height: int, width: int, angle: float, expand: bool, center: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[int, int]]:
    """Return the six numbers that :func:`.warp.rotate` takes for an image of ``height`` by ``width``, and the height
    and width of the result.

    The other arguments are those of torchvision's ``rotate``: ``angle`` in degrees, ``center`` as x and y in pixels.
    Not for quarter turns about the centre: torchvision does not interpolate them, and its result may have another size.
    """
    matrix = _inverse_matrix(_from_centre(height, width, center), -(angle % 360), (0.0, 0.0), 1.0, (0.0, 0.0))
    return matrix, _expanded(matrix, height, width) if expand else (height, width)


def perspective_numbers(
    startpoints: Sequence[Sequence[int]] | None,
    endpoints: Sequence[Sequence[int]] | None,
    coefficients: Sequence[float] | None,
) -> tuple[float, ...]:
    """Return the eight numbers that :func:`.warp.perspective` takes: ``coefficients``, or those that map the corners
    ``endpoints`` to ``startpoints``.

    Corners are x and y in pixels. The numbers solve a system of equations by least squares in float64, and are rounded
    to float32.

    Raises:
        ValueError: the arguments are neither exactly two lists of four corners nor exactly a list of eight
            coefficients.
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
