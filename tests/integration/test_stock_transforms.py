"""A loop that waits for transforms of torchvision gets advice about them, from trials on its own samples."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from .sandbox import Analysis


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 0])
def test_hue_is_most_of_it(analyze: Callable[..., Analysis], workers: int) -> None:
    done = analyze("stock_transforms.py", "--workers", str(workers), rungs="device,raw,baseline", budget=20)
    tried = {one["key"]: one for one in done.json["session"]["alternatives"]}
    assert {"hue", "tensor"} <= tried.keys(), done.stderr
    assert tried["hue"]["ms_instead"] < 0.7 * tried["hue"]["ms"] and tried["hue"]["difference"] > 0
    advice = {one["id"]: one for one in done.json["recommendations"]}
    assert advice["instead"]["title"].endswith("without hue, other pixels"), done.stdout
    predicted = advice["instead"]["predicted_speedup"]
    assert predicted["value"] > 1.2 and predicted["low"] > 1
    assert done.json["remedy"] is None and "remedied" not in json.dumps(done.json), "nothing is moved unasked"
