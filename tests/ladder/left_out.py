"""Code of a user's whose calls are left out. pytest would change it if it were in a module of tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

#: Calls that were really made.
CALLS: list[str] = []


def slowly(result: Any) -> Any:
    """Take longer than what is too quick to be kept."""
    CALLS.append("slowly")
    np.sort(np.random.default_rng(0).random(20_000))
    return result


class Holder:
    """An object of the user's with state."""

    def __init__(self) -> None:
        self.count, self.seen = 0, []
        self.buffer = np.zeros((4, 4), np.float32)

    def pure(self, x: Any) -> Any:
        return slowly(x * 2)

    def counts(self, x: Any) -> Any:
        self.count += 1
        return slowly(x * 2)

    def remembers(self, x: Any) -> Any:
        self.seen.append(1)
        return slowly(x * 2)

    def lends(self, x: Any) -> Any:
        return slowly(self.buffer)


def draws(x: Any) -> Any:
    return slowly(x + random.random() + np.random.rand() + torch.rand(()).item())


def in_place(x: Any) -> Any:
    x += 1
    return slowly(x.copy())


def fails(x: Any) -> Any:
    slowly(x)
    raise ValueError("as it does")


def passed(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)  # the line


def heavy(x: Any) -> Any:
    return slowly(x[::-1].copy())


def item(self: Any, index: int) -> Any:
    size = random.randrange(2, 5)
    x = np.random.rand(6, 6)
    x = heavy(x)  # of a sample
    return torch.from_numpy(x * size), index


def padded(batch: Any) -> Any:
    xs = heavy(np.stack([x for x, _ in batch]))  # of a batch
    return torch.from_numpy(xs), torch.tensor([n for _, n in batch])


def own_sizes(self: Any, index: int) -> Any:
    """A result's size that its arguments do not tell, and that the code around it relies on."""
    vars(self)["number"] = vars(self).get("number", 0) + 1
    x = sized(self)  # of another size each time
    assert len(x) == self.number
    return torch.zeros(1)


def sized(self: Any) -> Any:
    return slowly(np.zeros(self.number))


def never(self: Any, index: int) -> Any:
    if index < 0:
        return heavy(index)  # never
    return torch.zeros(1)  # quick
