"""Give any iterable of batches the form of a loader, so that the loop over it is measured like any other.

Its code runs in the training process, as it does without pipediag: a generator, another library's loader, a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset


class Batches(IterableDataset):  # type: ignore[misc]
    """An iterable of the script's own, whose items are finished batches.

    Attributes:
        iterable: what is iterated; an iterator goes on where it stands.
        name: of the generator's function, or of the iterable's class.
        code: what makes the batches: a generator's code, or the class of the iterable.
        drawn: number of batches drawn so far.
        over: true once the iterable has ended.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable, self.drawn, self.over = iterable, 0, False
        self.code: Any = type(iterable)
        self.name = self.code.__name__.removesuffix("_iterator")  # as Python calls a list's
        if isinstance(iterable, GeneratorType):
            self.code, function = iterable.gi_code, iterable.__qualname__.removesuffix(".<locals>.<genexpr>")
            name = function.rpartition("<locals>.")[2]
            owner, _, method = name.rpartition(".")
            expression = function != iterable.__qualname__ or name == "<genexpr>"
            self.name = "a generator" if expression else f"{name}()"
            if owner and method == "__iter__":
                self.name = owner

    def __iter__(self) -> Iterator[Any]:
        for batch in self.iterable:
            self.drawn += 1
            yield batch
        self.over = True


def as_it_is(batch: Any) -> Any:
    """Return the batch: the collate function of finished batches."""
    return batch


def loader_over(iterable: Iterable[Any]) -> DataLoader[Any]:
    """Return a loader without workers that yields the items of an iterable unchanged.

    It draws from a generator of its own: torch's loader takes a seed for every epoch.
    """
    return DataLoader(Batches(iterable), batch_size=None, collate_fn=as_it_is, generator=torch.Generator())


def is_plain(loader: DataLoader[Any]) -> bool:
    """Return whether a loader is only the form of an iterable of the script's own."""
    return isinstance(loader.dataset, Batches)
