"""Loops over something else than a DataLoader are measured: how much the loop waits, and for which line."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from .sandbox import Analysis, line_of, slow

FORMS = {"counted": "counted", "drawn": "drawn", "of-a-class": "Stream"}


@pytest.fixture(scope="module")
def results(side_by_side: Callable[..., Future[Analysis]], slow_too: bool) -> dict[str, Future[Analysis]]:
    forms = [*FORMS][: 3 if slow_too else 1]
    return {form: side_by_side("own_loop.py", form, budget=6, rungs="device,sample,baseline") for form in forms}


@pytest.mark.parametrize("form", ["counted", *slow("drawn", "of-a-class")])
def test_the_loop_is_measured(results: dict[str, Future[Analysis]], form: str) -> None:
    done = results[form].result()
    assert done.bottleneck == "load"
    assert done.ms("baseline") > 30 > 2 * done.ms("device")
    loader = done.json["loader"]
    assert loader["plain_iterable"] and loader["dataset"] == ("Stream" if form == "of-a-class" else "batches()")
    assert done.json["verdict"]["culprit"]["where"].endswith(f":{line_of('own_loop.py', 'time.sleep(0.03)')}")
    assert "no DataLoader" in done.stdout and "instead of 0" not in done.stdout
