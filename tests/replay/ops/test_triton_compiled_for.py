"""Fused kernels compile, and are not compiled again for a table at another address, which changes with every batch."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import triton.language

from pipediag.replay.ops.triton import (
    _pixel_kernels,
    _resample_kernels,
    blur,
    jpeg_colours,
    levels,
    pillow_blur,
    pillow_warp,
    warp,
)
from pipediag.replay.ops.triton._launch import OPTIONS

BOXES = {"tops", "lefts", "heights", "widths", "image_heights", "image_widths"}


@pytest.mark.parametrize(
    ("kernel", "tables"),
    [
        (_pixel_kernels.sum_kernel, {"codes", "operands", "tables", "sums"}),
        (_pixel_kernels.pixel_kernel, {"codes", "operands", "tables", "sums", "flips"}),
        (blur._blur_kernel, {"sigma"}),
        (pillow_blur._box_kernel, {"numbers"}),
        (_resample_kernels.plan_kernel, BOXES),
        (_resample_kernels.apply_kernel, {"offsets", "image_heights", "image_widths"}),
        (warp._warp_kernel, {"transform"}),
        (pillow_warp._warp_kernel, {"transform"}),
        (jpeg_colours._rgb_kernel, {"planes", "table", "out"}),
    ],
)
def test_kernels_are_not_specialized_for_the_addresses_of_tables(kernel: Any, tables: set[str]) -> None:
    assert {param.name for param in kernel.params if param.do_not_specialize_on_alignment} == tables


class TestCompiling:
    """The interpreter, which other tests use, accepts code that the compiler refuses. Compiling needs no GPU."""

    def test_colours_of_jpegs(self) -> None:
        types = {"planes": "*u8", "table": "*i64", "out": "*u8"}
        assert "cubin" in compiled(jpeg_colours._rgb_kernel, types, {"BLOCK": 1024})

    def test_levels(self) -> None:
        constants = {"BLOCK": 1024, "BINS": 256}
        types = {"x": "*u8", "counts": "*i32", "out": "*u8", "tables": "*u8"}
        assert "cubin" in compiled(levels._count_kernel, types, {**constants, "SLICES": 8})
        assert "cubin" in compiled(levels._map_kernel, types, constants)

    @pytest.mark.parametrize("pillow", [True, False], ids=["pillow", "tensors"])
    def test_plans(self, pillow: bool) -> None:
        constants = {
            "STRIDED": False,
            "RADIUS": 2,
            "ANTIALIAS": True,
            "EXACT": False,
            "DIRECT": True,
            "REAL": triton.language.float64,
            "FIXED": True,
            "PILLOW": pillow,
            "BLOCK": 256,
        }
        types = {**dict.fromkeys(BOXES, "*i64"), "plan": "*i32", "weights": "*i32"}
        assert "cubin" in compiled(_resample_kernels.plan_kernel, types, constants)

    @pytest.mark.parametrize("layout", ["strided", "chw"])
    @pytest.mark.parametrize(("down_first", "two_by_two"), [(True, False), (False, False), (False, True)])
    def test_tiles(self, layout: str, down_first: bool, two_by_two: bool) -> None:
        constants = {
            "LAYOUT": layout,
            "FIXED": True,
            "WHOLE": True,
            "SCALE": 1.0,
            "TWO_BY_TWO": two_by_two,
            "DOWN_FIRST": down_first,
            "ROWS": 8,
            "COLUMNS": 128,
        }
        tables = dict.fromkeys(("offsets", "image_heights", "image_widths"), "*i64")
        types = {**tables, "pixels": "*u8", "out": "*u8", "plan": "*i32", "weights": "*i32"}
        assert "cubin" in compiled(_resample_kernels.apply_kernel, types, constants)

    def test_programs_of_pillow(self) -> None:
        constants = {
            "CONTRAST": True,
            "CHANNELS": 3,
            "FLOATING": False,
            "PILLOW": True,
            "FLIP": True,
            "NORMALIZE": False,
            "SLICES": 64,
            "ROWS": 4,
            "COLUMNS": 128,
        }
        tables = {"codes": "*i32", "operands": "*fp32", "tables": "*u8", "sums": "*fp64", "flips": "*i32"}
        floats = dict.fromkeys([f"{name}_{k}" for name in ("mean", "std") for k in range(3)], "fp32")
        types = {"x": "*u8", "out": "*u8", **tables, **floats}
        assert "cubin" in compiled(_pixel_kernels.pixel_kernel, types, constants)

    @pytest.mark.parametrize("down", [False, True])
    def test_boxes_of_pillow(self, down: bool) -> None:
        types = {"x": "*u8", "out": "*u8", "numbers": "*fp64"}
        assert "cubin" in compiled(pillow_blur._box_kernel, types, {"DOWN": down, "ROWS": 8, "COLUMNS": 128})

    @pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
    @pytest.mark.parametrize("perspective", [True, False])
    def test_warps_of_pillow(self, perspective: bool, interpolation: str) -> None:
        """A fused product and sum would round once; Pillow rounds twice."""
        constants = {
            "CHANNELS": 3,
            "PERSPECTIVE": perspective,
            "INTERPOLATION": interpolation,
            "ROWS": 8,
            "COLUMNS": 32,
        }
        types = {"x": "*u8", "out": "*u8", "transform": "*fp64", **{f"fill_{k}": "fp32" for k in range(4)}}
        made = compiled(pillow_warp._warp_kernel, types, constants)
        assert "cubin" in made
        assert ".f64" in made["ptx"] and "fma.rn.f64" not in made["ptx"]


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> dict[str, Any]:
    """Compile a kernel for an H100, with ``types`` of its tensors, ``constants`` by name, and int32 for the rest."""
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):
        pytest.skip("an older compiler takes other arguments")
    compiler = pytest.importorskip("triton.compiler")
    backend = pytest.importorskip("triton.backends.compiler")
    signature = {p.name: "constexpr" if p.name in constants else types.get(p.name, "i32") for p in kernel.params}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = compiler.ASTSource(kernel, signature, places)
    target = backend.GPUTarget("cuda", 90, 32)
    assembly: dict[str, Any] = compiler.compile(source, target=target, options=OPTIONS).asm
    return assembly
