"""The Triton kernels against torchvision's one-image kernels on the CPU.

Without a GPU they run in Triton's interpreter. It must be enabled before triton is imported, so a child process runs
the tests of this file again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import PIL.ImageFilter
import PIL.ImageOps
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from torchvision.transforms import functional as older
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2.functional import _geometry

from pipediag.replay.ops.families import pillow_blur as eager_blur
from pipediag.replay.ops.families import pillow_filters as pillow
from pipediag.replay.ops.families import pillow_warp as eager
from pipediag.replay.ops.families.resizing import uint8_in_fixed_point
from pipediag.replay.ops.table import OPERATIONS
from pipediag.replay.ops.triton import (
    _host,
    available,
    blur,
    jpeg_colours,
    levels,
    pillow_blur,
    pillow_warp,
    pixels,
    resample,
    warp,
)
from pipediag.replay.ops.triton.pixels import FLIP_HORIZONTALLY, FLIP_VERTICALLY, PixelOp, encode

from ..batches import one_by_one
from ..waiting import synchronising_forbidden

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])

# The interpreter is slow: few examples, and no search for a smaller one that fails.
PHASES = (Phase.explicit, Phase.generate) if INTERPRETED else tuple(Phase)
examples = settings(max_examples=4 if INTERPRETED else 8, deadline=None, derandomize=True, phases=PHASES)
dtypes = st.sampled_from((torch.uint8, torch.float32))
seeds = st.integers(0, 2**31)


@pytest.fixture(params=["cpu"] if INTERPRETED else [CUDA], scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "cpu":  # small images, yet with more than one tile
            for module in (resample, _host, blur, pillow_blur, pixels):
                patch.setattr(module, "_TILE", (8, 8))
            for module, name, number in (
                (resample, "_PLAN_BLOCK", 8),
                (pixels, "_SUM_BLOCK", 8),
                (jpeg_colours, "_BLOCK", 16),
                (levels, "_BLOCK", 16),
                (levels, "_SLICES", 2),
                (pixels, "_SLICES", 4),
            ):
                patch.setattr(module, name, number)
        yield torch.device(request.param)


@pytest.mark.skipif(INTERPRETED, reason="this is the child")
@pytest.mark.slow
def test_with_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not gpu", str(Path(__file__))]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout + child.stderr


def images(seed: int, shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    x = whole if dtype == torch.uint8 else whole.float() / 255
    return x.to(memory_format=torch.channels_last) if channels_last else x


def numbers(rows: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).to(device)


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    """Check that whole numbers are equal, and others within 1e-5."""
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=1e-5 if actual.is_floating_point() else 0)


def assert_rounded_alike(actual: Tensor, expected: Tensor) -> None:
    """Check as :func:`assert_equal`, but let one value in 1000 be rounded to the other side."""
    if actual.is_floating_point():
        assert_equal(actual, expected)
    else:
        difference = (actual.cpu().int() - expected.int()).abs()
        assert difference.max() <= 1
        assert difference.sum() <= max(1, difference.numel() // 1000)


# --- resample


@st.composite
def crops(draw: st.DrawFn) -> tuple[tuple[int, int], list[list[int]], tuple[int, int]]:
    """Height and width of images, boxes that overlap them, and the size of the result."""
    edges = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    boxes = []
    for _ in range(2):
        top, left = draw(st.integers(-3, edges[0] - 1)), draw(st.integers(-3, edges[1] - 1))
        boxes.append([top, left, draw(st.integers(4, 14)), draw(st.integers(4, 14))])
    boxes.append([0, 0, *edges])
    return edges, boxes, (draw(st.integers(1, 10)), draw(st.integers(1, 10)))


@pytest.mark.parametrize(
    ("interpolation", "antialias"),
    [
        ("bilinear", True),
        ("bilinear", False),
        ("bicubic", True),
        ("bicubic", False),
        ("nearest", True),
        ("nearest-exact", False),
    ],
)
def test_resized_crop(device: torch.device, interpolation: str, antialias: bool) -> None:
    @settings(examples, max_examples=2 if INTERPRETED else 5)
    @given(crop=crops(), dtype=dtypes, channels=st.sampled_from((1, 3)), seed=seeds, last=st.booleans())
    def check(crop, dtype: torch.dtype, channels: int, seed: int, last: bool) -> None:
        edges, boxes, size = crop
        x = images(seed, (3, channels, *edges), dtype, last)
        mode = InterpolationMode(interpolation)
        expected = one_by_one(
            x, lambda image, i: F.resized_crop(image, *boxes[i], size, interpolation=mode, antialias=antialias)
        )
        columns = numbers(boxes, device).unbind(1)
        actual = resample.resized_crop(
            x.to(device),
            *columns,
            size=size,
            interpolation=interpolation,
            antialias=antialias,
            largest=(14, 14),
            fixed_point=interpolation == "bicubic" or uint8_in_fixed_point(),
        )
        assert_equal(actual, expected)

    check()


@pytest.mark.parametrize("size", [(67, 62), (64, 64)])  # above and at ATen's limit for its direct code
def test_nearest_exact_pixels_of_large_results(device: torch.device, size: tuple[int, int]) -> None:
    x, box = images(0, (1, 1, 37, 41), torch.uint8), [3, 2, 29, 31]
    expected = F.resized_crop(x, *box, size, interpolation=InterpolationMode.NEAREST_EXACT)
    columns = numbers([box], device).unbind(1)
    actual = resample.resized_crop(x.to(device), *columns, size=size, interpolation="nearest-exact", antialias=False)
    assert_equal(actual, expected)


@pytest.mark.parametrize("scale", [True, False])
def test_resized_crop_from_uint8_to_float(device: torch.device, scale: bool) -> None:
    x, boxes = images(1, (2, 3, 15, 19), torch.uint8), [[2, 3, 11, 13], [0, 0, 15, 19]]
    floating = F.to_dtype(x, torch.float32, scale=scale)
    expected = one_by_one(floating, lambda image, i: F.resized_crop(image, *boxes[i], [8, 21], antialias=True))
    columns = numbers(boxes, device).unbind(1)
    actual = resample.resized_crop(
        x.to(device), *columns, size=(8, 21), antialias=True, out_dtype=torch.float32, scale=scale
    )
    assert_equal(actual if scale else actual / 255, expected if scale else expected / 255)


def test_resized_crop_without_fixed_point(device: torch.device) -> None:
    x, box = images(2, (1, 3, 15, 19), torch.uint8), [[2, 3, 11, 13]]
    expected = F.resized_crop(x.float(), *box[0], [8, 21], antialias=True).round().to(torch.uint8)
    columns = numbers(box, device).unbind(1)
    actual = resample.resized_crop(x.to(device), *columns, size=(8, 21), antialias=True, fixed_point=False)
    assert_rounded_alike(actual, expected)


@pytest.mark.parametrize(
    ("interpolation", "box", "size"), [("bilinear", [2, 3, 11, 13], (8, 21)), ("bicubic", [0, 1, 9, 17], (10, 5))]
)
def test_resized_crop_as_by_pillow(
    device: torch.device, interpolation: str, box: list[int], size: tuple[int, int]
) -> None:
    x = images(3, (2, 3, 15, 19), torch.uint8)
    expected = one_by_one(
        x, lambda image, _: F.pil_to_tensor(F.resized_crop(F.to_pil_image(image), *box, size, _MODES[interpolation]))
    )
    first = pillow.first_pass((box[2], box[3]), size)
    assert first == ("down" if size == (8, 21) and pillow._may_go_down_first() else "across")
    columns, rows = numbers([box] * 2, device).unbind(1), x.permute(0, 2, 3, 1).contiguous().to(device)
    options = {"size": size, "antialias": True, "interpolation": interpolation, "pillow": first}
    assert_equal(resample.resized_crop(x.to(device), *columns, **options), expected)
    offset, height, width = numbers([[0, 15, 19], [3 * 15 * 19, 15, 19]], device).unbind(1)
    places = (offset, height, width, *columns)
    actual = resample.resized_crop_ragged(
        rows.view(-1), *places, channels=3, layout="hwc", largest=(box[2], box[3]), **options
    )
    assert_equal(actual, expected)


_MODES = {mode.value: mode for mode in InterpolationMode}


@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_resized_crop_from_a_slab(device: torch.device, layout: str) -> None:
    batch = [images(seed, (3, *edges), torch.uint8) for seed, edges in enumerate(((12, 17), (20, 9)))]
    boxes = [[1, 2, 9, 11], [-2, 0, 19, 12]]
    expected = torch.stack(
        [F.resized_crop(x, *box, [7, 10], antialias=True) for x, box in zip(batch, boxes, strict=True)]
    )
    rows = [(x if layout == "chw" else x.permute(1, 2, 0)).reshape(-1) for x in batch]
    slab = torch.cat([torch.zeros(5, dtype=torch.uint8), *rows])
    heights, widths = zip(*[x.shape[1:] for x in batch], strict=True)
    actual = resample.resized_crop_ragged(
        slab.to(device),
        torch.tensor([5, 5 + len(rows[0])]).to(device),
        torch.tensor(heights).to(device),
        torch.tensor(widths).to(device),
        *numbers(boxes, device).unbind(1),
        channels=3,
        layout=layout,
        size=(7, 10),
        largest=(19, 12),
        antialias=True,
        fixed_point=uint8_in_fixed_point(),
    )
    assert_equal(actual, expected)


def test_resized_crop_rejects_what_it_cannot_do(device: torch.device) -> None:
    x, (box,) = images(0, (1, 3, 8, 8), torch.uint8).to(device), [numbers([[0, 0, 8, 8]], device).unbind(1)]
    with pytest.raises(ValueError, match="interpolation"):
        resample.resized_crop(x, *box, size=(4, 4), antialias=True, interpolation="lanczos")
    with pytest.raises(ValueError, match="scaled"):
        resample.resized_crop(x, *box, size=(4, 4), antialias=True, scale=True)
    with pytest.raises(TypeError, match="cannot become"):
        resample.resized_crop(x.float(), *box, size=(4, 4), antialias=True, out_dtype=torch.uint8)
    with pytest.raises(TypeError, match="uint8 or float32"):
        resample.resized_crop(x.double(), *box, size=(4, 4), antialias=True)
    with pytest.raises(ValueError, match="4 dimensions"):
        resample.resized_crop(x[0], *box, size=(4, 4), antialias=True)
    with pytest.raises(ValueError, match="slab"):
        resample.resized_crop_ragged(
            x, *box[:3], *box, channels=3, layout="chw", size=(4, 4), largest=(8, 8), antialias=True
        )


# --- warp

fills = st.sampled_from((None, 0.25, (1.0, 0.5, 0.0)))


def scaled_fill(fill: float | Sequence[float] | None, dtype: torch.dtype) -> float | list[float] | None:
    if fill is None:
        return None
    top = 255 if dtype == torch.uint8 else 1
    return [v * top for v in fill] if isinstance(fill, Sequence) else fill * top


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_affine(device: torch.device, interpolation: str) -> None:
    angle, shift, stretch = st.floats(-180, 180), st.integers(-5, 5), st.floats(0.7, 1.4)

    @examples
    @given(
        edges=st.tuples(st.integers(9, 16), st.integers(9, 16)),
        parameters=st.lists(st.tuples(angle, shift, shift, stretch, st.floats(-20, 20)), min_size=2, max_size=2),
        dtype=dtypes,
        fill=fills,
        seed=seeds,
        last=st.booleans(),
    )
    def check(edges, parameters, dtype, fill, seed, last) -> None:
        x, fill = images(seed, (2, 3, *edges), dtype, last), scaled_fill(fill, dtype)

        def reference(image: Tensor, i: int) -> Tensor:
            angle, right, down, scale, shear = parameters[i]
            mode = InterpolationMode(interpolation)
            return F.affine(image, angle, [right, down], scale, [shear, 0.0], interpolation=mode, fill=fill)

        matrices = [
            _geometry._get_inverse_affine_matrix([0.0, 0.0], a, [float(r), float(d)], scale, [shear, 0.0])
            for a, r, d, scale, shear in parameters
        ]
        actual = warp.affine(x.to(device), numbers(matrices, device), interpolation=interpolation, fill=fill)
        assert_equal(actual, one_by_one(x, reference))

    check()


def test_rotation_that_expands_and_one_pixel(device: torch.device) -> None:
    x = images(2, (1, 3, 13, 18), torch.float32)
    expected = F.rotate(x, 33.0, expand=True, fill=[0.5])
    matrix = _geometry._get_inverse_affine_matrix([0.0, 0.0], -33.0, [0.0, 0.0], 1.0, [0.0, 0.0])
    size = (expected.shape[-2], expected.shape[-1])
    options = {"interpolation": "nearest", "fill": 0.5}
    assert_equal(warp.affine(x.to(device), numbers([matrix], device), size=size, **options), expected)
    pixel = x[..., :1, :1]
    assert_equal(warp.affine(pixel.to(device), numbers([matrix], device), **options), pixel)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_perspective(device: torch.device, interpolation: str) -> None:
    @examples
    @given(
        edges=st.tuples(st.integers(9, 16), st.integers(9, 16)),
        moves=st.lists(st.integers(0, 3), min_size=8, max_size=8),
        dtype=dtypes,
        fill=fills,
        seed=seeds,
    )
    def check(edges, moves, dtype, fill, seed) -> None:
        x, fill = images(seed, (2, 3, *edges), dtype), scaled_fill(fill, dtype)
        bottom, right = edges[0] - 1, edges[1] - 1
        corners = [[0, 0], [right, 0], [right, bottom], [0, bottom]]
        inward = [[1, 1], [-1, 1], [-1, -1], [1, -1]]
        moved = [[corner[k] + inward[i][k] * moves[2 * i + k] for k in range(2)] for i, corner in enumerate(corners)]
        coefficients = [
            _geometry._get_perspective_coeffs(corners, moved),
            _geometry._get_perspective_coeffs(moved, corners),
        ]

        def reference(image: Tensor, i: int) -> Tensor:
            mode = InterpolationMode(interpolation)
            return F.perspective(image, None, None, interpolation=mode, fill=fill, coefficients=coefficients[i])

        actual = warp.perspective(x.to(device), numbers(coefficients, device), interpolation=interpolation, fill=fill)
        assert_equal(actual, one_by_one(x, reference))

    check()


def test_warps_reject_what_they_cannot_do(device: torch.device) -> None:
    x, matrix = images(0, (1, 3, 8, 8), torch.uint8).to(device), numbers([[1, 0, 0, 0, 1, 0]], device)
    with pytest.raises(ValueError, match="interpolation"):
        warp.affine(x, matrix, interpolation="bicubic", fill=None)
    with pytest.raises(ValueError, match="transforms of shape"):
        warp.perspective(x, matrix, interpolation="nearest", fill=None)
    with pytest.raises(ValueError, match="channels"):
        warp.affine(x, matrix, interpolation="nearest", fill=[0.0, 1.0])
    with pytest.raises(TypeError, match="uint8 or float32"):
        warp.affine(x.half(), matrix, interpolation="nearest", fill=None)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_warps_of_pillow(device: torch.device, interpolation: str) -> None:
    """They equal the batched kernels, which are tested against Pillow."""
    turn, shift, bend = st.floats(-2, 2) | st.just(0.0), st.floats(-9, 20), st.floats(-0.05, 0.05) | st.just(0.0)

    @examples
    @given(
        edges=st.tuples(st.integers(1, 16), st.integers(1, 16)),
        size=st.tuples(st.integers(1, 16), st.integers(1, 16)),
        transforms=st.lists(st.tuples(turn, turn, shift, turn, turn, shift, bend, bend), min_size=2, max_size=2),
        channels=st.sampled_from((1, 3)),
        seed=seeds,
        last=st.booleans(),
    )
    def check(edges, size, transforms, channels, seed, last) -> None:
        x, bent = images(seed, (2, channels, *edges), torch.uint8, last), numbers(transforms, device)
        options = {"size": size, "interpolation": interpolation, "fill": (7, 200, 3)[:channels]}
        for name, given_numbers in (("perspective", bent), ("affine", bent[:, :6])):
            if (name, interpolation) != ("affine", "nearest"):
                expected = getattr(eager, name)(x, given_numbers.cpu(), **options)
                assert_equal(getattr(pillow_warp, name)(x.to(device), given_numbers, **options), expected)

    check()


# --- blur


def test_blur_of_pillow(device: torch.device) -> None:
    """It equals Pillow, where boxes are narrower and wider than the image, and each sample has its own."""
    extents = st.floats(0, 12) | st.sampled_from((0.0, 1.0, 30.0))

    @examples
    @given(
        edges=st.tuples(st.integers(1, 20), st.integers(1, 20)),
        radii=st.lists(st.tuples(extents, extents), min_size=2, max_size=2),
        gaussian=st.booleans(),
        channels=st.sampled_from((1, 3)),
        seed=seeds,
        last=st.booleans(),
    )
    def check(edges, radii, gaussian, channels, seed, last) -> None:
        x = images(seed, (2, channels, *edges), torch.uint8, last)
        kind = PIL.ImageFilter.GaussianBlur if gaussian else PIL.ImageFilter.BoxBlur
        expected = [
            F.pil_to_tensor(F.to_pil_image(image).filter(kind(radius))) for image, radius in zip(x, radii, strict=True)
        ]
        boxes = [[eager_blur.gaussian_radius(r) if gaussian else r for r in pair] for pair in radii]
        table = numbers([[n for r in pair for n in eager_blur.box_numbers(r)] for pair in boxes], device)
        passes = eager_blur.PASSES if gaussian else 1
        assert_equal(pillow_blur.box_blur(x.to(device), table, passes=passes), torch.stack(expected))

    check()


@pytest.mark.parametrize("kernel_size", [(7, 7), (3, 5), (1, 1), (5, 1), (11, 13)])
def test_gaussian_blur(device: torch.device, kernel_size: tuple[int, int]) -> None:
    @settings(examples, max_examples=1 if INTERPRETED else 2)
    @given(
        edges=st.tuples(st.integers(7, 10), st.integers(6, 12)),
        sigma=st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0.1, 3.0)), min_size=2, max_size=2),
        dtype=dtypes,
        channels=st.sampled_from((1, 3)),
        seed=seeds,
        last=st.booleans(),
    )
    def check(edges, sigma, dtype, channels, seed, last) -> None:
        x = images(seed, (2, channels, *edges), dtype, last)
        expected = one_by_one(x, lambda image, i: F.gaussian_blur(image, list(kernel_size), list(sigma[i])))
        actual = blur.gaussian_blur(x.to(device), numbers(sigma, device), kernel_size=kernel_size)
        assert_rounded_alike(actual, expected)

    check()


def test_gaussian_blur_and_normalization(device: torch.device) -> None:
    x, sigma, mean, std = images(3, (1, 3, 9, 12), torch.float32), [1.3, 0.6], [0.4, 0.5, 0.6], [0.5, 0.4, 0.3]
    expected = F.normalize(F.gaussian_blur(x, [3, 3], sigma), mean, std)
    actual = blur.gaussian_blur(x.to(device), numbers([sigma], device), kernel_size=(3, 3), mean=mean, std=std)
    assert_equal(actual, expected)


def test_gaussian_blur_rejects_what_it_cannot_do(device: torch.device) -> None:
    x, sigma = images(0, (1, 3, 8, 3), torch.uint8).to(device), numbers([[1, 1]], device)
    for size in ((4, 3), (3, 4), (7, 3)):
        with pytest.raises(ValueError, match="kernel"):
            blur.gaussian_blur(x, sigma, kernel_size=size)
    with pytest.raises(ValueError, match="deviations"):
        blur.gaussian_blur(x, sigma[:, :1], kernel_size=(3, 3))
    with pytest.raises(ValueError, match="normalized"):
        blur.gaussian_blur(x, sigma, kernel_size=(3, 3), mean=[0.5], std=[0.5])
    with pytest.raises(TypeError, match="uint8 or float32"):
        blur.gaussian_blur(x.double(), sigma, kernel_size=(3, 3))


# --- pixels

Program = Sequence[tuple[Any, ...]]  # operations and their parameters

REFERENCES: dict[PixelOp, Callable[..., Tensor]] = {
    PixelOp.BRIGHTNESS: F.adjust_brightness,
    PixelOp.CONTRAST: F.adjust_contrast,
    PixelOp.SATURATION: F.adjust_saturation,
    PixelOp.HUE: F.adjust_hue,
    PixelOp.GAMMA: F.adjust_gamma,
    PixelOp.GRAYSCALE: lambda x: F.rgb_to_grayscale(x, num_output_channels=x.shape[0]),
    PixelOp.INVERT: F.invert,
    PixelOp.SOLARIZE: lambda x, part: F.solarize(x, part if x.is_floating_point() else part * 255),
    PixelOp.POSTERIZE: lambda x, bits: F.posterize(x, int(bits)),
    PixelOp.TO_FLOAT: lambda x: F.to_dtype(x, torch.float32, scale=True),
    PixelOp.TO_UINT8: lambda x: F.to_dtype(x, torch.uint8, scale=True),
}

factors = st.floats(0.0, 2.0)
steps = st.one_of(
    st.tuples(st.sampled_from((PixelOp.BRIGHTNESS, PixelOp.SATURATION)), factors),
    st.tuples(st.just(PixelOp.HUE), st.floats(-0.5, 0.5)),
    st.tuples(st.sampled_from((PixelOp.GRAYSCALE, PixelOp.INVERT))),
    st.tuples(st.just(PixelOp.SOLARIZE), st.floats(0.0, 1.0)),
    st.tuples(st.just(PixelOp.POSTERIZE), st.integers(0, 8)),
)


def programs(sequences: Sequence[Program], floating: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    length = max(1, *map(len, sequences))
    codes, operands = torch.zeros(len(sequences), length, dtype=torch.int32), torch.zeros(len(sequences), length, 2)
    for n, sequence in enumerate(sequences):
        now = floating
        for k, (op, *parameters) in enumerate(sequence):
            if op is PixelOp.SOLARIZE and not now:
                parameters = [parameters[0] * 255]
            now = op is PixelOp.TO_FLOAT or (now and op is not PixelOp.TO_UINT8)
            codes[n, k], operands[n, k, 0], operands[n, k, 1] = encode(op, *parameters)
    return codes.to(device), operands.to(device)


def replayed(x: Tensor, sequences: Sequence[Program]) -> Tensor:
    def reference(image: Tensor, i: int) -> Tensor:
        for op, *parameters in sequences[i]:
            image = REFERENCES[op](image, *parameters)
        return image

    return one_by_one(x, reference)


def assert_replayed(
    x: Tensor, sequences: Sequence[Program], device: torch.device, contrast: int, dtype: torch.dtype
) -> None:
    codes, operands = programs(sequences, x.is_floating_point(), device)
    actual = pixels.run(x.to(device), codes, operands, contrast=contrast, out_dtype=dtype)
    assert_equal(actual, replayed(x, sequences))


def test_programs(device: torch.device) -> None:
    @examples
    @given(
        edges=st.tuples(st.integers(1, 12), st.integers(1, 12)),
        sequences=st.lists(st.lists(steps, max_size=4), min_size=3, max_size=3),
        dtype=dtypes,
        channels=st.sampled_from((1, 3)),
        seed=seeds,
    )
    def check(edges, sequences, dtype, channels, seed) -> None:
        assert_replayed(images(seed, (3, channels, *edges), dtype), sequences, device, 0, dtype)

    check()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_contrast_anywhere_in_a_program(device: torch.device, dtype: torch.dtype) -> None:
    sequences = [
        [(PixelOp.CONTRAST, 0.4)],
        [(PixelOp.BRIGHTNESS, 1.4), (PixelOp.CONTRAST, 1.7), (PixelOp.HUE, 0.3), (PixelOp.CONTRAST, 0.2)],
        [(PixelOp.SATURATION, 0.3), (PixelOp.INVERT,), (PixelOp.CONTRAST, 1.2)],
        [(PixelOp.INVERT,)],
        [],
    ]
    assert_replayed(images(4, (5, 3, 7, 9), dtype), sequences, device, 2, dtype)
    assert_replayed(images(4, (5, 1, 7, 9), dtype), sequences, device, 2, dtype)


PILLOWS: dict[PixelOp, Callable[..., Any]] = {
    PixelOp.BRIGHTNESS: older.adjust_brightness,
    PixelOp.PILLOW_CONTRAST: older.adjust_contrast,
    PixelOp.PILLOW_SATURATION: older.adjust_saturation,
    PixelOp.PILLOW_HUE: older.adjust_hue,
    PixelOp.PILLOW_GRAYSCALE: lambda picture: older.rgb_to_grayscale(picture, len(picture.getbands())),
}

steps_of_pillow = st.one_of(
    st.tuples(
        st.sampled_from((PixelOp.BRIGHTNESS, PixelOp.PILLOW_CONTRAST, PixelOp.PILLOW_SATURATION)), st.floats(0.0, 3.0)
    ),
    st.tuples(st.just(PixelOp.PILLOW_HUE), st.floats(-0.5, 0.5)),
    st.tuples(st.just(PixelOp.PILLOW_GRAYSCALE)),
    st.tuples(st.just(PixelOp.POINT), st.integers(0, 2)),
)


def assert_as_pillow(x: Tensor, sequences: Sequence[Program], device: torch.device) -> None:
    tables = images(10, (3, x.shape[1], 256), torch.uint8)
    codes, operands = programs(sequences, False, device)
    contrast = max(sum(op is PixelOp.PILLOW_CONTRAST for op, *_ in sequence) for sequence in sequences)
    actual = pixels.run(x.to(device), codes, operands, tables=tables.to(device), contrast=contrast, pillow=True)

    def by_pillow(image: Tensor, i: int) -> Tensor:
        picture = F.to_pil_image(image)
        for op, *parameters in sequences[i]:
            if op is PixelOp.POINT:
                picture = picture.point(tables[parameters[0]].flatten().tolist())
            else:
                picture = PILLOWS[op](picture, *parameters)
        return F.pil_to_tensor(picture)

    assert torch.equal(actual.cpu(), one_by_one(x, by_pillow))


def test_programs_of_pillow(device: torch.device) -> None:
    @settings(examples, max_examples=4 if INTERPRETED else 300)
    @given(
        edges=st.tuples(*[st.integers(1, 12 if INTERPRETED else 300)] * 2),
        sequences=st.lists(st.lists(steps_of_pillow, max_size=4), min_size=3, max_size=3),
        channels=st.sampled_from((1, 3)),
        seed=seeds,
    )
    def check(edges, sequences, channels, seed) -> None:
        assert_as_pillow(images(seed, (3, channels, *edges), torch.uint8), sequences, device)

    check()


@pytest.mark.parametrize("channels", [1, 3])
def test_each_operation_of_pillow(device: torch.device, channels: int) -> None:
    sequences = [
        [(PixelOp.PILLOW_CONTRAST, 0.4)],
        [(PixelOp.BRIGHTNESS, 1.4), (PixelOp.PILLOW_CONTRAST, 1.7), (PixelOp.POINT, 1), (PixelOp.PILLOW_CONTRAST, 0.2)],
        [(PixelOp.PILLOW_HUE, -0.2), (PixelOp.PILLOW_SATURATION, 1.3)],
        [(PixelOp.POINT, 2), (PixelOp.PILLOW_GRAYSCALE,)],
        [],
    ]
    assert_as_pillow(images(4, (5, channels, 7, 9), torch.uint8), sequences, device)


@pytest.mark.parametrize("factor", [-0.5, -0.31, 0.0, 0.004, 0.1, 0.5])
def test_the_hue_of_every_colour(device: torch.device, factor: float) -> None:
    """Without a GPU, of every 51st level."""
    levels = torch.arange(0, 256, 51 if INTERPRETED else 1, dtype=torch.uint8)
    colours = torch.cartesian_prod(levels, levels, levels).t().reshape(1, 3, len(levels), -1)
    assert_as_pillow(colours, [[(PixelOp.PILLOW_HUE, factor)]], device)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("gamma", [(0.0,), (0.5,), (1.0,), (2.2, 1.3)])
def test_gamma(device: torch.device, dtype: torch.dtype, gamma: tuple[float, ...]) -> None:
    x, sequence = images(5, (1, 3, 16, 16), dtype), [[(PixelOp.GAMMA, *gamma)]]
    codes, operands = programs(sequence, x.is_floating_point(), device)
    assert_rounded_alike(pixels.run(x.to(device), codes, operands, contrast=0), replayed(x, sequence))


def test_conversions_in_a_program(device: torch.device) -> None:
    x = images(6, (3, 3, 7, 9), torch.uint8)
    to_float = [
        [(PixelOp.CONTRAST, 1.3), (PixelOp.TO_FLOAT,), (PixelOp.HUE, 0.1), (PixelOp.SOLARIZE, 0.7)],
        [(PixelOp.TO_FLOAT,), (PixelOp.CONTRAST, 0.6), (PixelOp.BRIGHTNESS, 1.4)],
        [(PixelOp.SOLARIZE, 0.4), (PixelOp.TO_FLOAT,)],
    ]
    assert_replayed(x, to_float, device, 1, torch.float32)
    to_whole = [
        [(PixelOp.SATURATION, 0.3), (PixelOp.TO_UINT8,), (PixelOp.HUE, 0.1)],
        [(PixelOp.TO_UINT8,), (PixelOp.CONTRAST, 0.6)],
        [(PixelOp.POSTERIZE, 3), (PixelOp.TO_UINT8,)],
    ]
    assert_replayed(x.float() / 255, to_whole, device, 1, torch.uint8)


def test_kinds_of_conversion(device: torch.device) -> None:
    x = images(7, (2, 1, 16, 16), torch.uint8)
    codes, operands = programs([[(PixelOp.TO_FLOAT, 1.0, 255.0)], [(PixelOp.TO_FLOAT, 1.0, 1.0)]], False, device)
    actual = pixels.run(x.to(device), codes, operands, contrast=0, out_dtype=torch.float32).cpu()
    assert torch.equal(actual, torch.stack((x[0].float().div(255), x[1].float())))


def test_flips_and_normalization(device: torch.device) -> None:
    x, mean, std = images(8, (4, 3, 7, 10), torch.uint8), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    flips = [0, FLIP_HORIZONTALLY, FLIP_VERTICALLY, FLIP_HORIZONTALLY | FLIP_VERTICALLY]
    flipped = torch.stack((x[0], x[1].flip(-1), x[2].flip(-2), x[3].flip(-1, -2)))
    expected = F.normalize(F.to_dtype(flipped, torch.float32, scale=True), mean, std)
    codes, operands = programs([[(PixelOp.TO_FLOAT,)]] * 4, False, device)
    actual = pixels.run(
        x.to(device),
        codes,
        operands,
        flips=torch.tensor(flips, dtype=torch.int32).to(device),
        contrast=0,
        out_dtype=torch.float32,
        mean=mean,
        std=std,
    )
    assert torch.equal(actual.cpu(), expected)


def test_programs_reject_what_they_cannot_do(device: torch.device) -> None:
    x = images(0, (1, 3, 8, 8), torch.uint8).to(device)
    codes, operands = programs([[(PixelOp.INVERT,)]], False, device)
    with pytest.raises(ValueError, match="1 or 3 channels"):
        pixels.run(x[:, :2], codes, operands, contrast=0)
    with pytest.raises(ValueError, match="codes"):
        pixels.run(x, codes, operands[..., :1], contrast=0)
    with pytest.raises(ValueError, match="contrasts"):
        pixels.run(x, codes, operands, contrast=2)
    with pytest.raises(ValueError, match="normalized"):
        pixels.run(x, codes, operands, contrast=0, mean=[0.5], std=[0.5])
    with pytest.raises(TypeError, match="uint8 or floating"):
        pixels.run(x, codes, operands, contrast=0, out_dtype=torch.int32)
    with pytest.raises(TypeError, match="operations of Pillow take uint8"):
        pixels.run(x.float(), codes, operands, contrast=0, pillow=True)
    with pytest.raises(ValueError, match="tables of 3 channels"):
        pixels.run(x, codes, operands, tables=x[0, 0, :1], contrast=0)
    with pytest.raises(ValueError, match="CONTRAST with 0 parameters"):
        encode(PixelOp.CONTRAST)


# --- levels


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 7, 9), (3, 1, 4, 8), (1, 3, 1, 1)])
def test_levels_are_counted_and_mapped(device: torch.device, shape: tuple[int, ...], last: bool) -> None:
    x, tables = images(11, shape, torch.uint8, last), images(12, (*shape[:2], 256), torch.uint8)
    counted = levels.counts(x.to(device))
    expected = torch.stack([torch.bincount(plane, minlength=256) for plane in x.flatten(2).flatten(0, 1)])
    assert counted.dtype == torch.int32
    assert torch.equal(counted.cpu().flatten(0, 1), expected.int())
    made = levels.mapped(x.to(device), tables.to(device))
    assert torch.equal(made.cpu().flatten(2), tables.gather(2, x.flatten(2).long()))
    assert made.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def test_equalizing_and_stretching_as_pillow(device: torch.device) -> None:
    @settings(examples, max_examples=4 if INTERPRETED else 100)
    @given(
        edges=st.tuples(*[st.integers(1, 9 if INTERPRETED else 300)] * 2),
        channels=st.sampled_from((1, 3)),
        seed=seeds,
        span=st.sampled_from((1, 2, 40, 256)),
    )
    def check(edges, channels, seed, span) -> None:
        x = (images(seed, (2, channels, *edges), torch.uint8).int() % span).to(torch.uint8)
        nothing = torch.empty(0, device=device)
        for name, call in (("equalize", PIL.ImageOps.equalize), ("pillow_autocontrast", PIL.ImageOps.autocontrast)):
            made = OPERATIONS[f"fast_{name}"].apply([x.to(device)], nothing, (), nothing)
            expected = one_by_one(x, lambda image, _, call=call: F.pil_to_tensor(call(F.to_pil_image(image))))
            assert torch.equal(made.cpu(), expected), name

    check()


# --- the package


def test_empty_batches(device: torch.device) -> None:
    x = torch.zeros((0, 3, 8, 8), device=device)
    nothing = x[:, 0, 0, 0].double()
    assert resample.resized_crop(x, *[nothing] * 4, size=(4, 5), antialias=True).shape == (0, 3, 4, 5)
    assert warp.affine(x, nothing.expand(6, 0).t(), interpolation="nearest", fill=None).shape == x.shape
    assert blur.gaussian_blur(x, nothing.expand(2, 0).t(), kernel_size=(3, 3)).shape == x.shape
    assert pixels.run(x, x[:, 0, 0, :1].int(), x[:, 0, :1, :2], contrast=0).shape == x.shape


def test_no_synchronization(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("only a GPU can be waited for")
    x = images(9, (2, 3, 24, 24), torch.uint8).to(device)
    box = numbers([[0, 0, 20, 20], [2, 2, 22, 22]], device).unbind(1)
    matrix, sigma = numbers([[1, 0, 2, 0, 1, 3]] * 2, device), numbers([[1, 1]] * 2, device)
    codes, operands = programs([[(PixelOp.CONTRAST, 0.5)]] * 2, False, device)

    def everything() -> None:
        y = resample.resized_crop(x, *box, size=(24, 24), antialias=True)
        y = warp.affine(y, matrix, interpolation="nearest", fill=3.0)
        y = blur.gaussian_blur(y, sigma, kernel_size=(3, 3))
        pixels.run(y, codes, operands, contrast=1)

    everything()  # compiling may wait
    with synchronising_forbidden():
        everything()


def test_available_only_on_cuda() -> None:
    assert not available(torch.device("cpu"))
    if torch.cuda.is_available():
        assert available(torch.device("cuda"))


def test_codes_can_be_imported_without_triton() -> None:
    program = "import sys; sys.modules['triton'] = None; import pipediag.replay.ops.triton.pixels"
    subprocess.run([sys.executable, "-c", program], check=True)


# --- colours of JPEGs


def upsampled(plane: Tensor, sampling: int, height: int, width: int) -> Tensor:
    """Return the chroma of every pixel as libjpeg interpolates it: 3/4 of the nearest sample and 1/4 of the next."""
    wide, high = sampling >> 4, sampling & 15
    if wide == 1 or plane.shape[1] <= 2:
        return plane.repeat_interleave(high, 0).repeat_interleave(wide, 1)[:height, :width]
    if high == 2:
        above, below = plane[:1], plane[-1:]
        rows = torch.stack([3 * plane + torch.cat([above, plane[:-1]]), 3 * plane + torch.cat([plane[1:], below])], 1)
        plane = rows.flatten(0, 1)
    left, right = torch.cat([plane[:, :1], plane[:, :-1]], 1), torch.cat([plane[:, 1:], plane[:, -1:]], 1)
    rounding, bits = ((8, 7), 4) if high == 2 else ((1, 2), 2)
    columns = torch.stack([(3 * plane + left + rounding[0]) >> bits, (3 * plane + right + rounding[1]) >> bits], 2)
    return columns.flatten(1, 2)[:height, :width]


def in_rgb(y: Tensor, cb: Tensor, cr: Tensor) -> Tensor:
    red = y + ((round(1.402 * 65536) * (cr - 128) + 32768) >> 16)
    green = y + ((-round(0.34414 * 65536) * (cb - 128) - round(0.71414 * 65536) * (cr - 128) + 32768) >> 16)
    blue = y + ((round(1.772 * 65536) * (cb - 128) + 32768) >> 16)
    return torch.stack([red, green, blue], -1).clamp(0, 255).byte()


@examples
@given(
    st.lists(
        st.tuples(st.integers(1, 11), st.integers(1, 13), st.sampled_from([0x11, 0x21, 0x22])), min_size=1, max_size=4
    ),
    seeds,
)
def test_colours_of_jpegs(device: torch.device, files: list[tuple[int, int, int]], seed: int) -> None:
    rows, planes, expected, end, at = [], [], [], 0, 5
    for k, (height, width, sampling) in enumerate(files):
        chroma = -(-height // (sampling & 15)), -(-width // (sampling >> 4))
        own = [images(seed + 3 * k + c, size, torch.uint8) for c, size in enumerate(((height, width), chroma, chroma))]
        y, cb, cr = (plane.int() for plane in own)
        expected.append(in_rgb(y, *(upsampled(plane, sampling, height, width) for plane in (cb, cr))))
        begins = [end, end + own[0].numel(), end + own[0].numel() + own[1].numel()]
        end = begins[2] + own[2].numel()
        rows.append((*begins, at, height, width, sampling))
        at += 3 * height * width
        planes += [plane.flatten() for plane in own]
    out = torch.full((at + 5,), 77, dtype=torch.uint8, device=device)
    most = max(height * width for height, width, _ in files)
    jpeg_colours.to_rgb(torch.cat(planes).to(device), torch.tensor(rows).to(device), out, most)
    made = out.cpu()
    assert (made[:5] == 77).all()
    assert (made[at:] == 77).all()
    assert torch.equal(made[5:at], torch.cat([pixels.flatten() for pixels in expected]))
