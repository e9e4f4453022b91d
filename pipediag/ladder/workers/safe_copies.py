"""Hand out cached items so that neither the collate function nor the loop can change them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from ...usercode import tree
from ...usercode.paths import same


@dataclass
class Habits:
    """Effects of the collate function on the samples that it gets.

    Attributes:
        passes_on: True if the batch shares the samples' memory.
        takes_apart: True if it changes their containers.
        writes: types of the leaves it writes into.
    """

    passes_on: bool = False
    takes_apart: bool = False
    writes: tuple[type, ...] = ()

    @property
    def copies(self) -> tuple[type, ...]:
        """Types that must be copied before a sample is handed out."""
        return (torch.Tensor, *self.writes) if self.passes_on else self.writes

    @property
    def harmless(self) -> bool:
        return not (self.passes_on or self.takes_apart or self.writes)


class SafeCopies:
    """Copies of cached items, as far as the collate function or the loop would change them.

    Attributes:
        habits: observed once, by kind of item.
        seconds: spent on copying for the current batch.
    """

    def __init__(self) -> None:
        self.habits: dict[str, Habits] = {}
        self.seconds = 0.0
        self._watched: dict[str, list[_Watched]] = {}

    def begin(self) -> None:
        """Start a batch."""
        self.seconds = 0.0
        self._watched = {}

    def of(self, sample: Any, kind: str = "sample") -> Any:
        """Return a cached sample with whatever would be changed copied.

        Until that is known, the whole sample is copied and watched. Results of transforms that the collate function
        runs are of another ``kind`` than its samples.
        """
        habits = self.habits.get(kind)
        if habits is not None and habits.harmless:
            return sample
        started = time.perf_counter()
        if habits is not None:
            sample = tree.copied(sample, habits.copies)
        else:
            sample = tree.copied(sample)
            self._watched.setdefault(kind, []).append(_Watched(sample))
        self.seconds += time.perf_counter() - started
        return sample

    def learn(self, batch: Any) -> bool:
        """Learn how the collate function treated the watched samples, from which it made ``batch``.

        Returns False if none was watched.
        """
        watched, self._watched = self._watched, {}
        for kind, ones in watched.items():
            self.habits[kind] = Habits(
                passes_on=tree.share_memory([one.leaves for one in ones], batch),
                takes_apart=any(one.taken_apart for one in ones),
                writes=tuple({written for one in ones for written in one.written}),
            )
        return bool(watched)


class _Watched:
    """A sample about to be handed to user code, with its state before that."""

    def __init__(self, sample: Any) -> None:
        self._sample = sample
        self.leaves = list(tree.leaves(sample))
        self._twins = list(tree.leaves(tree.copied(sample)))
        self._versions = list(map(tree.versions, self.leaves))

    @property
    def taken_apart(self) -> bool:
        return list(map(id, tree.leaves(self._sample))) != list(map(id, self.leaves))

    @property
    def written(self) -> set[type]:
        """Types of the leaves that have changed; a tensor's version counts writes into it."""
        before = zip(self.leaves, self._twins, self._versions, strict=True)
        return {
            type(leaf)
            for leaf, twin, versions in before
            if tree.versions(leaf) != versions or same(leaf, twin) is False
        }
