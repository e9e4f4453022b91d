"""The loop receives, under every rung, just what it would receive without us; each script checks it at every step."""

from __future__ import annotations

import pytest

from .sandbox import Results, analyses

pytestmark = pytest.mark.slow

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


results = analyses(
    {form: (["batches.py", form], {}) for form in FORMS}
    | {name: (["in_place.py", *arguments], {"rungs": rungs}) for name, (arguments, rungs) in IN_PLACE.items()},
    budget=5,
)


@pytest.mark.parametrize("form", FORMS)
def test_types_and_nesting_are_kept(results: Results, form: str) -> None:
    done = results[form]
    assert done.measured == EVERYTHING
    assert not done.others and done.passes == 1


@pytest.mark.parametrize("kind", IN_PLACE)
def test_changes_in_place_reach_no_cache(results: Results, kind: str) -> None:
    done = results[kind]
    assert done.measured == set(IN_PLACE[kind][1].split(","))
    assert "writes-in-place" in done.warned
    assert not done.others and done.passes == 1, "the script has failed under a rung"
