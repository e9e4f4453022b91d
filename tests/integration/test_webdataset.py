"""webdataset gives its transforms to stages of a pipeline, not to attributes of the dataset."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .sandbox import Analysis, line_of

pytest.importorskip("webdataset")

SCRIPT = "webdataset_stages.py"


def test_the_transform_that_takes_the_time_is_named_with_its_line(analyze: Callable[..., Analysis]) -> None:
    done = analyze(SCRIPT, budget=8, rungs="device,sample,baseline")
    links = {link["name"]: link for link in done.json["session"]["inside"]["links"]}
    assert {"Planted", "Cheap"} <= set(links)
    planted = links["Planted"]
    assert planted["where"].endswith(f"{SCRIPT}:{line_of(SCRIPT, 'class Planted')}")
    assert planted["cost"]["wall_ms"] > 19
    assert all(link["cost"]["wall_ms"] < 10 for name, link in links.items() if name != "Planted")
    assert done.json["verdict"]["culprit"]["name"] == "Planted", done.json["verdict"]
