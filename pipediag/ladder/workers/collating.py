"""Hand out cached items so that neither the collate function nor the loop can change them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from ...clock import time
from ...usercode import tree
from ...usercode.paths import same
from ...usercode.spying import Recorder, Seen, spied
from ...usercode.transform_slots import Slot, function_slots


@dataclass
class Habits:
    """Effects of the collate function on the samples that it gets."""

    passes_on: bool = False  # True if the batch shares the samples' memory
    takes_apart: bool = False  # True if it changes their containers
    writes: tuple[type, ...] = ()  # types of the leaves it writes into

    @property
    def copies(self) -> tuple[type, ...]:
        """Types that must be copied before a sample is handed out."""
        return (torch.Tensor, *self.writes) if self.passes_on else self.writes

    @property
    def harmless(self) -> bool:
        return not (self.passes_on or self.takes_apart or self.writes)


class SafeCopies:
    """Copies of cached items, as far as the collate function or the loop would change them."""

    def __init__(self) -> None:
        self.habits: dict[str, Habits] = {}  # observed once, by kind of item
        self.seconds = 0.0  # spent on copying for the current batch
        self._watched: dict[str, list[_Watched]] = {}

    def begin(self) -> None:
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


#: Maximum number of results that are kept.
_MOST_RESULTS = 32


class CollateStubs:
    """Stubs for the transforms of a collate function, which return results from earlier samples.

    True if there are any.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self._results: dict[str, list[Any]] = {}  # by the name of the transform's slot
        self._recorded = False

    def __bool__(self) -> bool:
        return bool(self._results)

    @cached_property
    def _slots(self) -> list[Slot]:
        return function_slots(self._collate)

    @property
    def missing(self) -> bool:
        """True if the function may run transforms of which no results were recorded yet."""
        return bool(self._slots) and not self._recorded

    def record(self, items: list[Any], batched: bool, count: int, room: float) -> None:
        """Collate these samples, together or each by itself, and keep the results of the transforms that run.

        Transforms of whole batches run again on a batch of ``count`` samples, if their results fit into ``room`` bytes.
        """
        self._recorded = True
        seen, whole = self._calls([items] if batched else items), count / len(items)
        if 0 < len(seen) < len(items) and whole != 1:  # it transforms batches, not samples
            fits = whole * sum(tree.nbytes(one.looked) for one in seen) < room
            copies = (tree.copied(item) for item in itertools.cycle(items))
            seen = self._calls([list(itertools.islice(copies, count))]) if fits else []
        for one in seen[:_MOST_RESULTS]:
            self._results.setdefault(one.call.name, []).append(one.looked)

    def _calls(self, batches: list[Any]) -> list[Seen]:
        recorder = Recorder()
        with spied(self._slots, recorder):
            for batch in batches:
                self._collate(batch)
        return recorder.seen

    @contextmanager
    def installed(self, copies: SafeCopies) -> Iterator[None]:
        """Replace the transforms within the context; their results pass through ``copies``."""
        with ExitStack() as stack:
            for slot in self._slots:
                if slot.name in self._results:
                    safe = partial(copies.of, kind=slot.name)
                    stack.enter_context(slot.replaced(_Stub(self._results[slot.name], safe)))
            yield


class _Stub:
    """A stand-in for a transform that returns its earlier results, passed through ``safe``."""

    def __init__(self, results: Sequence[Any], safe: Callable[[Any], Any]) -> None:
        self._results = itertools.cycle(results)
        self._safe = safe

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._safe(next(self._results))
