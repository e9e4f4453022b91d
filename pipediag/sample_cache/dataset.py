"""Serve a dataset's samples from the cache; make and keep those that are missing."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

from ..usercode import randomness
from ..usercode.paths import same
from ..usercode.slots import find_slots
from .changes import Attributes, contents, differing, makers
from .cut import Cut, Cutter, Kept, is_number
from .opened import opened_files
from .ranks import are_several
from .records import Record, RecordError
from .store import FileFacts, Store

#: Number of kept samples that a process uses before it makes one anew to compare it.
EVERY = 500
#: Maximum bytes of a reason, in UTF-8.
_REASON = 400


class SampleCache:
    """The samples of a dataset, as each process serves them.

    Attributes:
        dataset: the user's dataset.
        tails: the remaining links of its random transforms. Replacing an item takes effect.
        switch: whether the cache is used; shared with the other processes.
    """

    def __init__(self, dataset: Any, cut: Cut, store: Store) -> None:
        self.dataset = dataset
        self.store = store
        self.tails = cut.tails(dataset)
        self.switch = Switch()
        self.every = EVERY
        self._cut = cut
        self._transforms = [slot.get() for slot in find_slots(dataset)]
        self._contents = self._look()
        self._here: _Here | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_here": None, "_contents": {}}

    def ready(self) -> None:
        """Do nothing: each process prepares itself for its first sample."""

    # ---- in the process that began

    def check(self) -> str:
        """Compare the dataset with what it was when it was cached. Return the name of what has changed, or ""."""
        changed = self._in_this_process().changed()
        if not changed:
            kept = makers(self.dataset, self._cut.heads)
            differs = differing(self._contents, self._look(), kept) - self._cut.settling
            changed = min(differs, default="")
        self.switch.pause(bool(changed))
        return changed

    def _look(self) -> Any:
        return contents(makers(self.dataset, self._cut.heads))

    # ---- in the process that makes the samples

    def sample(self, index: Any) -> Any:
        """Return one sample."""
        here = self._in_this_process()
        if not self._serves(index) or here.changed():
            return self.dataset[index]
        entry = self.store.get(int(index))
        if entry is not None and not here.due(self.every):
            try:
                kept = Kept.decoded(entry)
            except RecordError:  # by another version of the user's classes
                return self.dataset[index]
            return kept.completed(self.tails)
        with opened_files() as files:
            sample, made = here.cutter.make(partial(operator.getitem, self.dataset, index))
        if isinstance(made, Kept):
            self._keep(int(index), made, files, entry)
        return sample

    def samples(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples of a batch; the dataset makes the missing ones together."""
        here = self._in_this_process()
        if not all(map(self._serves, indices)) or here.changed():
            made: list[Any] = self.dataset.__getitems__(indices)
            return made
        entries = [self.store.get(int(index)) for index in indices]
        anew = here.due(max(1, self.every // max(1, len(indices))))
        samples = [None if anew or entry is None else Kept.decoded(entry).sample for entry in entries]
        missing = [n for n, entry in enumerate(entries) if anew or entry is None]
        if not missing:
            return samples
        before = randomness.glance()
        with opened_files() as files:
            made = self.dataset.__getitems__([indices[n] for n in missing])
        if len(made) != len(missing):
            return self.dataset.__getitems__(indices)  # type: ignore[no-any-return]
        keeps = randomness.drawn_from(before, randomness.glance()) is None
        for n, sample in zip(missing, made, strict=True):
            samples[n] = sample
            if keeps:
                self._keep(int(indices[n]), Kept.whole(sample), files, entries[n])
        return samples

    def _serves(self, index: Any) -> bool:
        """Return whether the store may hold this sample, and may be used."""
        return is_number(index) and 0 <= index < self.store.samples and self.switch.on

    def _keep(self, index: int, made: Kept, files: list[FileFacts], before: Record | None) -> None:
        """Store what was made, or compare it with what is stored already."""
        try:
            record = made.encoded()
        except RecordError:
            return
        if before is None:
            self.store.put(index, record, files)
        elif not _equal(before, record):
            reason = f"sample {index} is not what it was when it was kept"
            self.switch.turn_off(reason)
            warnings.warn(f"pipediag.cache: {reason}; from now on all samples are made anew", stacklevel=2)

    def _in_this_process(self) -> _Here:
        if self._here is None or self._here.process != os.getpid():
            self._here = _Here(self.dataset, self._cut, self.tails, self._transforms)
        return self._here


class _Here:
    """What refers to the objects of one process: the transforms' slots, and the values of all attributes."""

    def __init__(
        self, dataset: Any, cut: Cut, tails: Sequence[Callable[..., Any]], transforms: Sequence[Callable[..., Any]]
    ) -> None:
        self.process = os.getpid()
        now = [slot.get() for slot in find_slots(dataset)]
        self._others = not cut.fits(dataset) or not all(map(operator.is_, now, transforms))
        if not self._others:
            self.cutter = Cutter(dataset, cut, tails)
        self._attributes = Attributes(dataset, cut)
        # Another rank, whose dataset is different, may have kept the first sample that is used: compare that one, too.
        self._used = -1 if are_several(os.environ) else 0

    def changed(self) -> str:
        return "transforms" if self._others else self._attributes.changed()

    def due(self, every: int) -> bool:
        """Count a use of the cache. Return whether to make the sample anew this time, and compare."""
        self._used += 1
        return self._used % every == 0


def _equal(entry: Record, record: Record) -> bool:
    if entry.head == record.head:
        return all(map(operator.eq, entry.buffers, record.buffers))
    try:
        one, other = (Kept.decoded(kept) for kept in (entry, record.copied()))
        return same(tuple(one), tuple(other)) is True
    except RecordError:
        return False


class Switch:
    """Whether the cache is used: a decision that the processes share."""

    def __init__(self) -> None:
        self._memory = torch.zeros(2 + _REASON, dtype=torch.uint8).share_memory_()
        self._bytes = self._memory.numpy()  # read in a tenth of a microsecond

    def __getstate__(self) -> dict[str, Any]:
        return {"_memory": self._memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._memory = state["_memory"]
        self._bytes = self._memory.numpy()

    @property
    def on(self) -> bool:
        off = self._bytes
        return not (off[0] or off[1])

    @property
    def reason(self) -> str:
        """Why it is off for good, or ""."""
        return bytes(self._bytes[2:]).rstrip(b"\0").decode(errors="ignore")

    def pause(self, paused: bool) -> None:
        self._bytes[0] = paused

    def turn_off(self, reason: str) -> None:
        text = reason.encode()[:_REASON]
        self._bytes[2 : 2 + len(text)] = list(text)
        self._bytes[1] = 1


class CachedDataset(Dataset):  # type: ignore[misc]
    """The user's dataset with a cache; other attributes are the user's dataset's, to read and to set.

    It keeps the user's dataset where :func:`find_slots` does not look, so that :func:`find_slots` finds the tails:
    they run for every sample.
    """

    def __init__(self, cache: SampleCache) -> None:
        self.__dict__.update(_cache=cache, _tails=cache.tails)

    def __getitem__(self, index: Any) -> Any:
        return self._cache.sample(index)

    def __len__(self) -> int:
        return len(self._cache.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_cache", "_tails"):
            raise AttributeError(name)
        return getattr(self._cache.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._cache.dataset, name, value)


class CachedBatches(CachedDataset):
    """A dataset that makes the samples of a batch together."""

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        return self._cache.samples(indices)
