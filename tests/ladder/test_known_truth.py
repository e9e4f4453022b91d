"""Certain answers about invented loops whose truth is exact."""

from __future__ import annotations

import pytest

from benchmarks.word.simulated import KINDS, invented

QUICK = {"steady", "load", "rare"}


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_what_is_certain_is_true(kind: str) -> None:
    certain = 0
    for seed in range(6):
        loop = invented(kind, seed)
        diagnosis = loop.analysed()
        assert not loop.wrong(diagnosis), f"{seed} ({loop.note}, truth {loop.truth}): {diagnosis.verdict}"
        certain += diagnosis.verdict.certain
    assert certain, "something is said"


def test_a_wrong_answer_is_seen() -> None:
    loop = next(loop for loop in (invented("steady", seed) for seed in range(99)) if 20 < loop.truth[0] < 70)
    diagnosis = loop.analysed()
    assert diagnosis.verdict.certain and not loop.wrong(diagnosis)
    for truth in (2.0, 95.0):
        loop.truth = (truth, truth)
        assert loop.wrong(diagnosis)


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_is_that_of_the_loop(kind: str) -> None:
    """Over many steps, as a clock sees it."""
    for seed in range(2):
        loop = invented(kind, seed)
        data = sum(loop.sample(number) for number in range(1, 200_001))
        steps = sum(loop.step(number) for number in range(50_000))
        assert 100 * data / (data + steps) == pytest.approx(loop.truth[0], abs=4.0)
