"""The loop receives, under every rung, just what it would receive without us; each script checks it at every step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from .sandbox import Analysis

pytestmark = pytest.mark.slow

Results = dict[str, Future[Analysis]]

EVERYTHING = {"device", "worker", "sample", "warm", "baseline", "supply"}
FORMS = ["nested", "detection", "graph"]

WITH_WORKERS = "device,worker,sample,raw,baseline"
WITHOUT = "device,sample,raw,warm,baseline"
IN_PLACE = {
    "in-process": (["--workers", "0"], WITHOUT),
    "workers": (["--workers", "2"], WITH_WORKERS),
    "in-process-uncollated": (["--workers", "0", "--lists"], WITHOUT),
    "workers-uncollated": (["--workers", "2", "--lists"], WITH_WORKERS),
}


@pytest.fixture(scope="module")
def results(side_by_side: Callable[..., Future[Analysis]]) -> Results:
    forms = {form: side_by_side("batches.py", form, budget=5) for form in FORMS}
    in_place = {
        name: side_by_side("in_place.py", *arguments, budget=5, rungs=rungs)
        for name, (arguments, rungs) in IN_PLACE.items()
    }
    return forms | in_place


@pytest.mark.parametrize("form", FORMS)
def test_types_and_nesting_are_kept(results: Results, form: str) -> None:
    done = results[form].result()
    assert done.measured == EVERYTHING
    assert not done.others and done.passes == 1


@pytest.mark.parametrize("kind", IN_PLACE)
def test_changes_in_place_reach_no_cache(results: Results, kind: str) -> None:
    done = results[kind].result()
    assert done.measured == set(IN_PLACE[kind][1].split(","))
    assert "writes-in-place" in done.warned
    assert not done.others and done.passes == 1, "the script has failed under a rung"
