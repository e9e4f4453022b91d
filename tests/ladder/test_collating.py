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


@pytest.mark.parametrize(
    ("does", "habits"),
    [
        (lambda given: given["tensor"].sum(), Habits()),
        (lambda given: given["tensor"], Habits(passes_on=True)),
        (lambda given: given.pop("tensor").sum(), Habits(takes_apart=True)),
        (lambda given: given["tensor"].add_(1).sum(), Habits(writes=(torch.Tensor,))),
        (
            lambda given: given["tensor"].add_(0).sum(),
            Habits(writes=(torch.Tensor,)),
        ),  # often in a batch's first sample
        (lambda given: given["tensor"].resize_(5).sum(), Habits(writes=(torch.Tensor,))),
        (lambda given: given["tensor"].numpy().fill(7), Habits(writes=(torch.Tensor,))),
        (lambda given: given["array"].fill(7), Habits(writes=(np.ndarray,))),
        (lambda given: given["array"].resize(5, refcheck=False), Habits(writes=(np.ndarray,))),
        (lambda given: given["picture"].putpixel((0, 0), 7), Habits(writes=(Image.Image,))),
        (lambda given: setattr(given["sample"], "label", 7), Habits(writes=(Sample,))),
        (lambda given: given["sample"].image.add_(1).sum(), Habits(writes=(Sample,))),
    ],
)
def test_what_a_collate_function_does(does: Callable[[Any], Any], habits: Habits) -> None:
    """To its only sample, of which the cache keeps the values."""
    sample = {
        "tensor": torch.zeros(2),
        "array": np.zeros(2),
        "picture": Image.new("L", (2, 2)),
        "sample": Sample(torch.zeros(2)),
        "text": "text",
    }
    twin = copy.deepcopy(sample)
    sample["gaps"] = np.full(2, np.nan)  # equal to no copy
    copies = SafeCopies()
    assert not copies.learn([torch.ones(2)]) and copies.habits == {}, "of samples that are not cached"
    batch = does(copies.of(sample))
    assert copies.learn(batch) and not copies.learn(batch)
    assert copies.habits == {"sample": habits}
    assert all(same(sample[name], one) for name, one in twin.items())


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
