"""What a line of plain code costs is measured by leaving it out, where that is sound; else the report says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .sandbox import Analysis, line_of, slow

RUNGS = "device,worker,sample,warm,baseline"


def piece(done: Analysis, stage: str, line: int) -> dict[str, Any]:
    where = f"left_out.py:{line}"
    of_stage = [one for one in done.json["waterfall"] if one["stage"] == stage and one["culprit"]]
    return next(one for one in of_stage if one["culprit"]["where"].endswith(where))


@pytest.mark.parametrize(
    ("form", "stage", "name"),
    [("own", "load", "denoised"), *slow(("library", "load", "np."), ("collate", "collate", "padded"))],
)
def test_the_loop_without_it_is_measured(analyze: Callable[..., Analysis], form: str, stage: str, name: str) -> None:
    """It takes 16 ms of some 20 ms that a batch takes a worker."""
    done = analyze("left_out.py", "--slow", form, rungs=RUNGS, budget=20)
    found = piece(done, stage, line_of("left_out.py", f"# {form}"))
    assert name in found["culprit"]["name"], done.stdout
    assert found["without"]["measured"], done.stdout
    assert found["without"]["steps_per_s"] > 1.3 * 1000 / done.ms("baseline"), done.stdout
    assert done.others == [], "the script runs as it does"


@pytest.mark.slow
def test_what_returns_nothing_is_timed_only(analyze: Callable[..., Analysis]) -> None:
    done = analyze("left_out.py", "--slow", "nothing", rungs=RUNGS, budget=20)
    line = line_of("left_out.py", "# nothing")
    assert not piece(done, "load", line)["without"]["measured"]
    assert f"left_out.py:{line}: timed, not proven: sleep returns nothing" in done.stdout.replace("\n    ", " ")
