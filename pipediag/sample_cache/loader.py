"""Wrap a loader so that the deterministic part of each sample is made only once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from ..arguments import at_least
from ..errors import UsageError
from ..loop.wrappers import InitWorker
from ..usercode.constructions import places_of
from ..usercode.links import links_of
from ..usercode.slots import find_slots
from .changes import key_of
from .cut import Cut
from .dataset import CachedBatches, CachedDataset, SampleCache
from .finding import NoCut, find_cut
from .ranks import are_several
from .store import Store
from .suitable import fetches_together, iterates_itself, why_unsuitable


class CachedLoader(DataLoader):  # type: ignore[misc]
    """A loader that yields the same batches as the user's, with samples from a cache.

    Attributes:
        loader: the user's loader, which also has all other attributes.
        store: what is kept; None if nothing is.
    """

    def __init__(self, loader: DataLoader[Any], cache: SampleCache | None, words: str) -> None:
        self.__dict__.update(loader.__dict__, _iterator=None, loader=loader, _cache=cache, _words=words, _changed="")
        self.__dict__["store"] = None if cache is None else cache.store
        if cache is not None:
            served = CachedBatches if fetches_together(cache.dataset) else CachedDataset
            self.__dict__["dataset"] = served(cache)
            self.__dict__["worker_init_fn"] = InitWorker(cache, loader.worker_init_fn)

    def followed_by(self, loader: DataLoader[Any]) -> CachedLoader:
        """Return a cached loader for another loader over the same dataset, with this one's cache."""
        return CachedLoader(loader, self._cache, self._words)

    @property
    def plan(self) -> str:
        """What is kept, or why nothing is."""
        reason = self._cache.switch.reason if self._cache is not None else ""
        if reason:
            return f"nothing is kept any more: {reason}"
        words = "; ".join([self._words, *filter(None, (self.left_out, self.made_anew))])
        return f"not used, since {self._changed!r} has changed: {words}" if self._changed else words

    @property
    def left_out(self) -> str:
        """How many samples are not kept for lack of room; "" as long as all fit."""
        store: Store | None = self.store
        if store is None or store.full is None or store.entries == store.samples:
            return ""
        return f"{store.samples - store.entries:,} of {store.samples:,} samples do not fit: {store.full}"

    @property
    def made_anew(self) -> str:
        """How many samples were made anew although they had been kept; "" if none."""
        store: Store | None = self.store
        if store is None:
            return ""
        counts = {"since a file of theirs had changed": store.changed, "since they were damaged": store.damaged}
        found = [f"{number:,} {why}" for why, number in counts.items() if number]
        return f"samples made anew: {', '.join(found)}" if found else ""

    def __iter__(self) -> Iterator[Any]:
        if self._cache is not None:
            self.__dict__["_changed"] = self._cache.check()
        elif iterates_itself(self.loader):
            return iter(self.loader)
        iterator: Iterator[Any] = super().__iter__()
        return iterator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


def cache(
    loader: DataLoader[Any], *, folder: Path | str | None = None, nbytes: int | None = None, samples: int = 16
) -> CachedLoader:
    """Wrap a loader so that the part of each sample that is the same in every epoch is made only once.

    The result of everything before the first random draw (reading, decoding, parsing, a fixed resize) is kept in memory
    that the workers share, or in files. The other transforms run as before, in the workers and with their random
    numbers, so the batches are the same. First, some samples are made several times in separate processes to find what
    is always the same; ``plan`` says what was found.

    Args:
        loader: any ``DataLoader``; it is not changed.
        folder: where to keep files that later runs use, too; None keeps everything in memory, for this run only.
        nbytes: maximum number of bytes to keep; None takes what is free, except for a reserve.
        samples: number of samples to try.

    Raises:
        UsageError: ``loader`` is not a ``DataLoader``, ``samples`` or ``nbytes`` is not a whole number, ``folder``
            cannot be made or written to, or the platform is not Linux.
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(f"cache() takes a torch DataLoader, not {type(loader).__name__}")
    samples = at_least(1, "samples", samples)
    if nbytes is not None:
        nbytes = at_least(0, "nbytes", nbytes)
    if isinstance(loader, CachedLoader):
        return loader
    try:
        if why := why_unsuitable(loader):
            raise NoCut(why)
        cut = find_cut(loader, samples)
    except NoCut as reason:
        return CachedLoader(loader, None, f"nothing is kept: {reason}")
    dataset, where = loader.dataset, None if folder is None else Path(folder)
    key = key_of(dataset, cut) if where is not None or are_several(os.environ) else ""
    store = Store.create(len(dataset), nbytes, where, key)
    return CachedLoader(loader, SampleCache(dataset, cut, store), _words(dataset, cut))


def _words(dataset: Any, cut: Cut) -> str:
    """Return what is kept, for instance "kept after Resize (train.py:31)"."""
    if not cut.heads:
        return "kept whole"
    slots, parts = find_slots(dataset), []
    for number, head in cut.heads.items():
        places = places_of(links_of(slots[number].get()))
        if not places:
            continue
        place = places[max(0, head - 1)]
        mine = place.where and not place.library
        parts.append(f"{'after' if head else 'before'} {place.name}{f' ({place.where})' if mine else ''}")
    return f"kept {' and '.join(parts)}"
