"""A glance at the random generators shows every draw."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pipediag.usercode import randomness

DRAWS: dict[str, tuple[Callable[[], Any], str]] = {
    "random": (random.random, "Python's"),
    "bits": (lambda: random.getrandbits(1), "Python's"),
    "gauss": (lambda: random.gauss(0, 1), "Python's"),
    "seed": (lambda: random.seed(3), "Python's"),
    "rand": (lambda: torch.rand(()), "torch's"),
    "randperm": (lambda: torch.randperm(3), "torch's"),
    "numpy": (np.random.rand, "numpy's"),
    "numpy seed": (lambda: np.random.seed(3), "numpy's"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_glance_shows_every_draw(name: str) -> None:
    draw, which = DRAWS[name]
    for _ in range(700):  # across the end of a generator's words
        before = randomness.glance()
        assert randomness.drawn_from(before, randomness.glance()) is None
        draw()
        if "seed" not in name:
            assert randomness.drawn_from(before, randomness.glance()) == which
    random.seed(4), np.random.seed(4)
    before = randomness.glance()
    draw()
    assert randomness.drawn_from(before, randomness.glance()) == which


def test_a_restored_state_looks_the_same() -> None:
    kept, before = randomness.state(), randomness.glance()
    random.gauss(0, 1), torch.rand(3), np.random.rand(3)
    randomness.restore(kept)
    assert randomness.drawn_from(before, randomness.glance()) is None


def test_another_generator_of_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, kept = np.random.get_bit_generator(), random.Random(3)
    np.random.set_bit_generator(np.random.PCG64(7))
    monkeypatch.setattr(random, "random", kept.random)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            before, glance = randomness.state(), randomness.glance()
            assert randomness.moved(before, randomness.state()) is None
            drawn = np.random.rand(3)
            assert randomness.moved(before, randomness.state()) == randomness.drawn_from(glance, randomness.glance())
            randomness.restore(before)
            assert (np.random.rand(3) == drawn).all()
    finally:
        np.random.set_bit_generator(mine)
