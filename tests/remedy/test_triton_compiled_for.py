"""What a fused kernel is compiled for: not for where its tables of numbers begin, which changes from batch to batch."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from pipediag.remedy.triton import _pixel_kernels, blur, resample, warp

BOXES = {"tops", "lefts", "heights", "widths", "image_heights", "image_widths"}


@pytest.mark.parametrize(
    ("kernel", "tables"),
    [
        (_pixel_kernels.sum_kernel, {"codes", "operands", "sums"}),
        (_pixel_kernels.pixel_kernel, {"codes", "operands", "sums", "flips"}),
        (blur._blur_kernel, {"sigma"}),
        (resample._plan_kernel, BOXES),
        (resample._apply_kernel, {"offsets", "image_heights", "image_widths"}),
        (warp._warp_kernel, {"transform"}),
    ],
)
def test_the_place_of_a_table_is_no_matter(kernel: Any, tables: set[str]) -> None:
    assert {param.name for param in kernel.params if param.do_not_specialize_on_alignment} == tables
