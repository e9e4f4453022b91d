"""Apply one loader's remedy to a whole training run: made once, watched, and given up on any doubt.

Giving up in the middle of an epoch neither loses nor repeats a sample: a plain loader continues with the indices that
were drawn but not yet handed out.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from traceback import clear_frames, walk_tb
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..frames import in_one_line
from ..loop.copies import plain_twin, require_no_state, wrap_sampler
from ..measure.clock import Clock, SystemClock
from .loader import OffloadedLoader, offload
from .plan import moved_links
from .spotcheck import AFTER, EVERY, SpotCheck
from .streams.feed import fetches_ahead

#: Maximum seconds until the signal of a worker that has ended arrives.
_SIGNALLED = 1.0
#: Modules that bring a worker's batches into this process.
_BETWEEN_PROCESSES = ("multiprocessing.", "torch.multiprocessing.")
#: Attributes of a loader that must not change during the run.
_SETTINGS = ("dataset", "batch_sampler", "sampler", "collate_fn", "worker_init_fn", "num_workers", "generator")


class RemediedRun:
    """Run of a loader under the remedy, and without it once there is a doubt.

    Args:
        loader: the script's loader; it is not changed.
        device: the training device.
        native: ``DataLoader._get_iterator``, unpatched.
        aside: context that keeps loaders iterated inside it apart from the script's.
        say: prints one line to the user.
        transforms, approximate: as for :func:`pipediag.offload`.
        cached: wraps a loader so that what library calls read and decode is kept; None keeps nothing.
        every: minimum number of batches between two spot checks.
        after: seconds before the first spot check.

    Raises:
        UsageError: the loader saves its place in the epoch.

    Attributes:
        offloaded: the result of :func:`pipediag.offload` for the loader.
        links: name and digest of every link that moves; none under the hand-off alone, which needs no spot checks.
        handed: number of batches handed out so far.
        raised: ``id()`` of the last error that a loop got from its batches; 0 if there was none.
        given_up: why the remedy was given up; empty while it is active, and again once the plain loader has raised the
            same error.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        device: torch.device,
        native: Callable[[Any], Iterator[Any]],
        aside: Callable[[], AbstractContextManager[None]],
        say: Callable[[str], None],
        transforms: bool = True,
        approximate: bool = False,
        cached: Callable[[DataLoader[Any]], DataLoader[Any]] | None = None,
        clock: Clock | None = None,
        every: int = EVERY,
        after: float = AFTER,
    ) -> None:
        require_no_state(loader)
        self.handed = 0
        self.raised = 0
        self.given_up = ""
        self._native = native
        self._aside = aside
        self._say = say
        self._cached = cached
        with aside():
            twin = self._taken_over(loader)
            self.offloaded = offload(twin, device, transforms=transforms, approximate=approximate)
        self._fetch_as(loader)
        self.links = self._moved()
        self._check = SpotCheck(self.offloaded, aside, clock or SystemClock(), every, after)
        self._plain: Any = None

    def take_over(self, loader: DataLoader[Any]) -> None:
        """Continue with a loader that the script has rebuilt over the same dataset."""
        if loader is self.loader:
            return
        before = self.offloaded
        self.offloaded = OffloadedLoader(self._taken_over(loader), before.plan, before.device)
        self.offloaded.certificate = before.certificate
        self._fetch_as(loader)
        self._check.follow(self.offloaded)

    def iterator(self) -> RemediedIterator:
        """Return the result of ``iter(loader)``. It draws the loader's random numbers now."""
        return RemediedIterator(self)

    def epoch(self) -> Iterator[Any]:
        """Return the batches of a new epoch."""
        return _Reporting(self._epoch(), self._note)

    def _epoch(self) -> Iterator[Any]:
        if not self.given_up:
            self._look_for_changes()
        if not self.given_up:
            try:
                with self._aside():
                    batches = iter(self.offloaded)
                # Unlike a generator, a chain continues after an error of the plain loader.
                return itertools.chain.from_iterable(self._parts(batches, self._drawn.latest))
            except Exception as error:
                self.give_up(in_one_line(error))
        return self._plain_epoch()

    def _note(self, error: Exception) -> None:
        self.raised = id(error)

    def give_up(self, why: str) -> None:
        self.given_up = why
        self._say(f"back to the plain loader: {why}")

    def resume(self, error: Exception) -> None:
        """Use the remedy from the next epoch on if the plain loader raises the error for which it was given up."""
        # Of the messages only the types are compared: an address in them may differ.
        if self.given_up and self.given_up.partition(":")[0] == in_one_line(error).partition(":")[0]:
            self.given_up = ""
            self._say("the plain loader raises that too: transforms move again from the next epoch on")

    def _parts(self, batches: Any, drawn: _Drawn) -> Iterator[Iterator[Any]]:
        """Yield the two parts of an epoch: remedied batches, and plain ones once the remedy is given up."""
        yield self._remedied(batches, drawn)
        if self.given_up:
            batches.close()
            del batches
            yield _Reporting(self._rest(drawn), self.resume)

    def _remedied(self, batches: Any, drawn: _Drawn) -> Iterator[Any]:
        while not self.given_up:
            try:
                yield self._watched(next(batches), drawn.handed())  # without keeping the batch alive
            except StopIteration:
                return
            except Exception as error:
                if _has_lost_workers(error):  # the plain loader's epoch ends with it too
                    error = _in_torchs_words(error)
                    batches.close()
                    raise error from None
                if isinstance(self.loader.dataset, IterableDataset):  # a plain loader would begin the stream anew
                    raise
                # If it is the dataset's own error, the plain loader raises it again.
                self.give_up(in_one_line(error))
                # Torch's frames keep the iterator alive in a cycle; a worker forked later would try to end its workers.
                clear_frames(error.__traceback__)

    def _watched(self, batch: Any, indices: Any) -> Any:
        """Return the batch to hand out, after a spot check if one is due."""
        self.handed += 1
        try:
            self._check.saw(indices)
            why = self._check.doubt() if self.links and self._check.due else ""
        except Exception as error:  # the check failed, but the batch is complete
            why = f"a spot check failed with {type(error).__name__}: {error}"
        if why:
            self.give_up(why)
        return batch

    def _rest(self, drawn: _Drawn) -> Iterator[Any]:
        """Return a plain loader's batches for the rest of an epoch."""
        twin = plain_twin(self.loader)
        twin.__dict__["persistent_workers"] = False  # it serves the rest of this epoch only
        wrap_sampler(twin, lambda sampler: drawn.left())
        return self._native(twin)

    def _taken_over(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        self.loader = loader
        self._made_of = _settings(loader)
        twin = plain_twin(loader)
        twin.__dict__["in_order"] = True  # batches are identified by their position
        self._drawn: _DrawnIndices = wrap_sampler(twin, _DrawnIndices)
        return twin if self._cached is None else self._cached(twin)

    def _fetch_as(self, loader: DataLoader[Any]) -> None:
        self.offloaded.feed.ahead = fetches_ahead(loader)  # our wrapper of the sampler allows fetching ahead

    def _look_for_changes(self) -> None:
        before, now = self._made_of, _settings(self.loader)
        changed = next((name for name in _SETTINGS if before[name] is not now[name]), None)
        if changed is not None:
            self.give_up(f"the loader has another {changed} than before")
            return
        try:
            links = self._moved()
        except IndexError:
            links = []
        if links != self.links:
            changed = next((name for name, _ in set(self.links) - set(links)), "a transform")
            self.give_up(f"{changed} has changed since it was proven")

    def _moved(self) -> list[tuple[str, str]]:
        return moved_links(self.offloaded.plan, self.offloaded.loader.dataset)

    def _plain_epoch(self) -> Iterator[Any]:
        if self._plain is not None and self.loader.persistent_workers:
            self._plain._reset(self.loader)
        else:
            self._plain = self._native(self.loader)
        return self._plain  # type: ignore[no-any-return]


def _has_lost_workers(error: Exception) -> bool:
    """Return whether a worker has ended or cannot be reached: torch says so, or its batch cannot be read."""
    if isinstance(error, RuntimeError) and str(error).startswith(("DataLoader worker", "Too many open files")):
        return True
    *_, (innermost, _) = walk_tb(error.__traceback__)
    module = innermost.f_globals["__name__"]
    return isinstance(error, (OSError, EOFError, RuntimeError)) and module.startswith(_BETWEEN_PROCESSES)


def _in_torchs_words(error: Exception) -> Exception:
    """Return torch's error for a worker that has ended. Its signal handler may raise that error here."""
    if isinstance(error, RuntimeError):
        return error
    try:
        time.sleep(_SIGNALLED)
    except RuntimeError as said:
        return said
    return error


def _settings(loader: DataLoader[Any]) -> dict[str, Any]:
    return {name: loader.__dict__.get(name) for name in _SETTINGS}


class RemediedIterator(_BaseDataLoaderIter):  # type: ignore[misc]
    """Iterator for the script's loop. A loader with persistent workers keeps it and resets it."""

    def __init__(self, owner: RemediedRun) -> None:
        # The parent's constructor would draw a seed and start the sampler; the twin's iterator does both.
        self._owner = owner
        self._reset(owner.loader)

    def __iter__(self) -> RemediedIterator:
        return self

    def __len__(self) -> int:
        return len(self._owner.loader)

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._num_yielded += 1
        return batch

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin a new epoch; ``iter()`` of a loader with persistent workers calls this."""
        self._num_yielded = 0
        self._batches = self._owner.epoch()


class _Reporting:
    """Iterator that reports each error before it raises it. Unlike a generator, it continues after an error."""

    def __init__(self, batches: Iterator[Any], report: Callable[[Exception], None]) -> None:
        self._batches = batches
        self._report = report

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            self._report(error)
            raise


class _DrawnIndices:
    """Wrapper of the user's sampler; ``latest`` are the indices of the latest epoch."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.latest: _Drawn

    def __iter__(self) -> Iterator[Any]:
        self.latest = _Drawn(iter(self.sampler))
        return self.latest

    def __len__(self) -> int:
        return len(self.sampler)

    def __getstate__(self) -> dict[str, Any]:
        return {"sampler": self.sampler}


class _Drawn:
    """Iterator over one epoch's indices that remembers them until their batch is handed out."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices
        self._ahead: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        drawn = next(self._indices)
        self._ahead.append(drawn)
        return drawn

    def handed(self) -> Any:
        """Forget the oldest indices, whose batch is handed out, and return them."""
        return self._ahead.popleft()

    def left(self) -> Iterator[Any]:
        return itertools.chain(self._ahead, self._indices)
