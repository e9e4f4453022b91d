"""Fetch samples as torch's loader does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def fetched(
    dataset: Any,
    indices: Sequence[Any],
    begin: Callable[[], None] = lambda: None,
    end: Callable[[list[Any]], None] = lambda samples: None,
) -> Any:
    """Return samples as torch's loader fetches them.

    ``begin`` is called before each that is fetched alone, and ``end`` with all samples so far after each.
    """
    many = getattr(dataset, "__getitems__", None)
    if many is not None:
        return many(indices)
    samples: list[Any] = []
    for index in indices:
        begin()
        samples.append(dataset[index])
        end(samples)
    return samples
