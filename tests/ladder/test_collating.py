"""Cached items are copied as far as user code would change them, and no further."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pipediag.ladder.workers.collating import Habits, SafeCopies

from ..things import Sample, same


@pytest.mark.parametrize(
    ("habits", "copied"),
    [
        (None, [True, True, True, True]),
        (Habits(passes_on=True), [True, True, False, False]),
        (Habits(writes=(np.ndarray,)), [True, False, True, False]),
        (Habits(writes=(torch.Tensor, Image.Image)), [True, True, False, True]),
        (Habits(takes_apart=True), [True, False, False, False]),
        (Habits(), [False, False, False, False]),
    ],
)
def test_copies_by_habits(habits: Habits | None, copied: list[bool]) -> None:
    """The list, and the tensor, the array and the picture in it."""
    copies = SafeCopies()
    copies.habits = {} if habits is None else {"sample": habits}
    sample = [torch.ones(2), np.ones(2), Image.new("L", (2, 2))]
    given = copies.of(sample)
    assert same(given, sample)
    assert [given is not sample, *(one is not other for one, other in zip(given, sample, strict=True))] == copied
    assert (copies.seconds > 0) is any(copied)


def learned(change: Callable[[Any], Any], sample: Any) -> Habits:
    """What is known of a collate function that does this to its only sample."""
    copies = SafeCopies()
    batch = change(copies.of(sample))
    assert copies.learn(batch) and not copies.learn(batch)
    return copies.habits["sample"]


def test_a_collate_function_that_changes_nothing() -> None:
    sample = {"a": torch.ones(2), "b": np.full(2, np.nan), "c": Image.new("L", (2, 2)), "d": "text", "e": Sample(1)}
    assert learned(lambda given: given["a"].sum(), sample) == Habits()


def test_passes_on() -> None:
    assert learned(lambda given: given[0], [torch.ones(2)]) == Habits(passes_on=True)


def test_takes_apart() -> None:
    assert learned(lambda given: given.pop("a").sum(), {"a": torch.ones(2)}) == Habits(takes_apart=True)


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (lambda given: given["tensor"].add_(1), torch.Tensor),
        (lambda given: given["tensor"].add_(0), torch.Tensor),  # often in the first sample of a batch
        (lambda given: given["tensor"].resize_(5), torch.Tensor),
        (lambda given: given["tensor"].numpy().fill(7), torch.Tensor),
        (lambda given: given["array"].fill(7), np.ndarray),
        (lambda given: given["array"].resize(5, refcheck=False), np.ndarray),
        (lambda given: given["picture"].putpixel((0, 0), 7), Image.Image),
        (lambda given: setattr(given["sample"], "label", 7), Sample),
        (lambda given: given["sample"].image.add_(1), Sample),
    ],
)
def test_writes(write: Callable[[Any], Any], kind: type) -> None:
    sample = {
        "tensor": torch.zeros(2),
        "array": np.zeros(2),
        "picture": Image.new("L", (2, 2)),
        "sample": Sample(torch.zeros(2)),
    }
    twin = copy.deepcopy(sample)
    assert learned(lambda given: (write(given), 0)[1], sample) == Habits(writes=(kind,))
    assert same(sample, twin)


def test_nothing_is_learned_from_samples_that_are_not_cached() -> None:
    copies = SafeCopies()
    assert not copies.learn([torch.ones(2)])
    assert copies.habits == {}


def test_each_kind_has_its_own_habits() -> None:
    copies = SafeCopies()
    sample, result = [torch.ones(2)], torch.ones(2)
    copies.of(sample)
    copies.of(result, "Crop").add_(1)
    copies.learn(None)
    assert copies.habits == {"sample": Habits(), "Crop": Habits(writes=(torch.Tensor,))}
    assert copies.of(sample) is sample and copies.of(result, "Crop") is not result


def test_an_item_that_cannot_be_copied_is_handed_out() -> None:
    copies = SafeCopies()
    lock = threading.Lock()
    assert copies.of([lock])[0] is lock
