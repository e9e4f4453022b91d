"""How the planted jobs are judged, and what is planted in them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.ranks.cases import CASES
from benchmarks.ranks.score import answer, ceiling, markdown, overhead, summary

Json = dict[str, Any]


def record(holds: str, named: Json | None, **changes: Any) -> Json:
    speeds = {"native": 20.0, "native_cached": 32.0, "baseline": 19.0, "device": 31.0}
    return {
        "name": "job",
        "kind": "storage",
        "holds": holds,
        "late": 1 if holds else None,
        "found": named,
        "error": "",
        "seconds": 25.0,
        "trials": 4,
        "steps_per_s": speeds,
        **changes,
    }


def named(kind: str, *ranks: int) -> Json:
    return {"ranks": [*ranks], "kind": kind, "sentence": ""}


@pytest.mark.parametrize(
    ("holds", "found", "expected"),
    [
        ("input", named("input", 1), "right"),
        ("step", named("step", 1), "right"),
        ("input", named("step", 1), "wrong"),
        ("input", named("input", 0), "wrong"),
        ("input", named("input", 0, 1), "wrong"),
        ("input", None, "missed"),
        ("", None, "quiet"),
        ("", named("step", 0), "false"),
    ],
)
def test_answers(holds: str, found: Json | None, expected: str) -> None:
    assert answer(record(holds, found)) == expected


def test_without_a_report() -> None:
    failed = record("", None, error="exit code 1", steps_per_s=dict.fromkeys(record("", None)["steps_per_s"]))
    assert (answer(failed), overhead(failed), ceiling(failed)) == ("failed", None, None)


def test_summary() -> None:
    records = [
        record("input", named("input", 1), seconds=30.0),
        record("input", None),
        record("", named("input", 1), seconds=20.0),
    ]
    assert summary(records) == {
        "right": 1,
        "missed": 1,
        "wrong": 0,
        "false": 1,
        "quiet": 0,
        "failed": 0,
        "seconds": 25.0,
        "overhead": 0.95,
        "ceiling": 0.9688,
    }
    assert summary([])["seconds"] is None
    assert len(markdown(records).splitlines()) == 2 + len(records)


def test_the_jobs() -> None:
    """Half of them have a late rank, whose cost is large, and no step is so short that processes fill two cores."""
    assert len({case.name for case in CASES}) == len(CASES)
    late = [case for case in CASES if case.holds]
    assert 2 * len(late) == len(CASES)
    for case in CASES:
        assert case.step_ms >= 30
        assert case.late is None or case.late < case.ranks
    for case in late:
        assert case.expected_ms() >= 1.4 * case._rank_ms(late=False, cached=False)
        assert (case.expected_ms(cached=True) > case.step_ms) == (case.holds == "step")


def test_the_arguments_of_a_job() -> None:
    by_name = {case.name: case for case in CASES}
    assert "--late-workers" in by_name["workers-none-of-2"].arguments
    assert by_name["workers-none-of-2"].arguments[-4:] == ["--late", "3", "--late-workers", "0"]
    assert by_name["noisy-2-ranks"].arguments[-1] == "--noisy"
    assert by_name["storage-3-ranks"].arguments[-4:] == ["--late", "0", "--late-sample-ms", "15"]
