"""Apply one loader's remedy to a whole training run: made once, watched, and given up on any doubt.

One iterator of torch's makes an epoch: it draws one base seed and uses the sampler's iterator once. Giving up changes
what its workers are asked for, from the next request on. So the plain batches go on at the same place of the sampler
and of all generators, and persistent workers stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from ..clock import Clock, SystemClock, time
from ..frames import in_one_line, users_text
from ..loop.copies import plain_twin, require_torchs_batches
from ..loop.iterators import foreign_method
from ..replay.certify.samples import Real, Recorded
from ..replay.plan import Plan, moved_calls, moved_links
from ..streams.executor import Flow
from ..streams.feed import fetches_ahead
from .finding import Found, Known, shown_by_batches, why_stream_stays
from .loader import OffloadedLoader, allowed, offload
from .saved_plan import spelled
from .spotcheck import AFTER, EVERY, SpotCheck

#: Maximum seconds until the signal of a worker that has ended arrives.
_SIGNALLED = 1.0
#: Modules that bring a worker's batches into this process.
_BETWEEN_PROCESSES = ("multiprocessing.", "torch.multiprocessing.")
#: Number of batches, all that the workers had to make with pixels, after which a plan that was found is given up.
_ALL_WITH_PIXELS = 8
#: Attributes of a loader that must not change during the run.
_SETTINGS = ("dataset", "batch_sampler", "sampler", "collate_fn", "worker_init_fn", "num_workers", "generator")


@dataclass
class Course:
    """How the run of a loader went, or of the loaders that a script makes one after the other in one place."""

    handed: int = 0  # number of batches handed out so far under the remedy
    raised: int = 0  # ``id()`` of the last error that a loop got from its batches; 0 if there was none
    given_up: str = ""  # why the remedy was given up; empty while it is active
    #: Why the next epoch is to begin with a trial on samples: the first batches showed nothing that moves.
    tries: str = ""
    tried: bool = False  # whether there was such a trial


class RemediedRun:
    """Run of a loader under the remedy, and without it once there is a doubt. It does not keep the loader alive.

    Args:
        loader: the script's loader; it is not changed.
        device: the training device.
        native: ``DataLoader._get_iterator``, unpatched.
        aside: context that keeps loaders iterated inside it apart from the script's.
        say: prints one line to the user.
        transforms, approximate: as for :func:`pipediag.offload`.
        cached: wraps a loader so that what library calls read and decode is kept; None keeps nothing.
        known: what was found out about datasets with the same transforms, which is not tried again.
        planned: the plan, if it is known. Its certificate is made from the first batches.
        finds: whether the first batches may show what moves, and make its certificate, if no plan says that. Otherwise
            that is tried on samples beforehand.
        told: called with this run once such a certificate has passed, or once it has turned out that nothing moves.
        course: continues an earlier loader's.
        every: minimum number of batches between two spot checks.
        after: seconds before the first spot check.

    Raises:
        UsageError: the loader saves its place in the epoch, or code that is not torch's changes its batches.

    Attributes:
        offloaded: the result of :func:`pipediag.offload` for the loader.
        links: name and digest of every link that moves; none under the hand-off alone, which needs no spot checks.
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
        known: Known | None = None,
        planned: Plan | None = None,
        finds: bool = False,
        told: Callable[[RemediedRun], None] = lambda run: None,
        course: Course | None = None,
        clock: Clock | None = None,
        every: int = EVERY,
        after: float = AFTER,
    ) -> None:
        require_torchs_batches(loader)
        self.course = course or Course()
        self._native = native
        self._aside = aside
        self._say = say
        self._made_of = _settings(loader)
        self._keeps_workers = loader.persistent_workers and loader.num_workers > 0
        self._with_gradients = torch.is_grad_enabled()
        self._repeats = not isinstance(loader.dataset, IterableDataset)
        with aside():
            twin = plain_twin(loader)
            twin.__dict__["in_order"] = True  # a slot of the ring is used in the order of the requests
            twin = twin if cached is None else cached(twin)
            key = known.key(twin.dataset, device, transforms, approximate) if known is not None else None
            found = known.found(key, twin.dataset) if known is not None and key is not None else None
            if self.course.tries:
                found = None
                self.course.tries, self.course.tried = "", True
            finds = finds and not self.course.tried
            if found is not None:
                self.offloaded = OffloadedLoader(twin, found.plan, device)
                self.offloaded.certificate = found.certificate
            elif transforms and (why := why_stream_stays(twin)):
                self.offloaded = OffloadedLoader(twin, Plan(reasons=(why,)), device)
            elif planned is not None:
                self.offloaded = OffloadedLoader(twin, planned, device)
            elif finds and transforms and (not self._repeats or shown_by_batches(twin)):  # a stream has just been
                self.offloaded = OffloadedLoader(twin, allowed(device, approximate), device, finds=True)
            else:
                self.offloaded = offload(twin, device, transforms=transforms, approximate=approximate)
        self._known, self._key, self._told = known, key, told
        self._finds, self._keeps_samples = finds, cached is not None
        self._left_alone = False  # True once it has turned out that nothing moves
        self._approximate = approximate
        self._clock, self._every, self._after = clock or SystemClock(), every, after
        self._follow(loader, found.first if found is not None else None, finds)
        self._began = False

    def _follow(self, loader: DataLoader[Any], first: list[tuple[Real, Recorded]] | None, finds: bool) -> None:
        self._feed = self.offloaded.feed
        self._feed.at_home = True
        self._feed.ahead = fetches_ahead(loader)
        self.links, self._code = self._moved(), self._moved(code_only=True)
        self._check = SpotCheck(self.offloaded, self._clock, self._every, self._after, first, finds)
        self._note()

    def iterator(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Return the result of ``iter(loader)``, with new workers. It draws the loader's random numbers now."""
        if not self._is_under_remedy(loader):
            return self._native(loader)
        self._feed.renew()
        return (_WithWorkers if loader.num_workers else _InProcess)(self, loader)

    def epoch(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Return the batches of a new epoch."""
        if self._repeats and self._is_in_vain(1):
            self.course.tries = self.offloaded.why
        if self._keeps_workers:  # they keep the loader's settings, the dataset and the transforms that they began with
            gradients = torch.is_grad_enabled() == self._with_gradients
            if self.course.tries and gradients:
                self._try_beforehand(loader)
            self._feed.orders.plainly = bool(self.course.given_up) or self._left_alone or not gradients
        elif self.course.tries:
            self._try_beforehand(loader)
        self._check.begin()
        kept = torch.get_rng_state(), loader.generator.get_state() if loader.generator is not None else None
        try:
            with self._aside():
                batches = iter(self.offloaded)
        except Exception as error:
            if self._began and self._keeps_workers:
                raise
            torch.set_rng_state(kept[0])
            if loader.generator is not None:
                loader.generator.set_state(kept[1])
            batches = self._native(loader)  # it raises its own error, if it was that
            self.give_up(in_one_line(error))
        self._began = True
        return batches

    def take(self, batches: Iterator[Any]) -> Any:
        """Return the next batch of an epoch, after a spot check if one is due."""
        try:
            batch = next(batches)
        except StopIteration:
            raise
        except Exception as error:
            told = users_text(_in_torchs_words(error) if _has_lost_workers(error) else error)
            self.course.raised = id(told)
            if told is error:
                raise
            raise told from None
        if self._feed.failed and not self.course.given_up:
            self.give_up(self._feed.failed)
        if not self.course.given_up and not self._feed.orders.plainly:
            self.course.handed += 1
            self._check_spot(batch)
        return batch

    def _try_beforehand(self, loader: DataLoader[Any]) -> None:
        """Try on samples what moves: code after the transforms may need pixels, which the first batches do not show."""
        why, self.course.tries, self.course.tried, self._finds = self.course.tries, "", True, False
        try:
            with self._aside():
                found = offload(self.offloaded.loader, self.offloaded.device, approximate=self._approximate)
        except Exception as error:
            self.give_up(in_one_line(error))
            return
        plan = found.plan
        if not plan.moves:
            self.give_up("; ".join(plan.reasons) or why)
            return
        if self._keeps_workers:  # they are told of the plan
            self.offloaded.follow(plan)
            self.offloaded.certificate = found.certificate
        else:
            self.offloaded = found
        self._follow(loader, None, False)
        self._told(self)

    def give_up(self, why: str) -> None:
        """Ask the workers for plain batches from now on."""
        self.course.given_up = why
        self._feed.orders.plainly = True
        self._say(f"back to the plain loader: {why}")

    def _check_spot(self, batch: Any) -> None:
        offloaded = self.offloaded
        if not self.links and not offloaded.finds:
            return
        certificate, plan, in_vain = offloaded.certificate, offloaded.plan, False
        try:
            why = self._check.saw(batch)
            if offloaded.plan is not plan:
                self.links, self._code = self._moved(), self._moved(code_only=True)
                self._note()
            new = certificate is None and offloaded.certificate is not None
            nothing = offloaded.plan is not plan and not self.links and not offloaded.finds
            if not why and (new or nothing):
                self._note()
                self._told(self)
            if nothing and not self._keeps_samples:
                self._left_alone = self._feed.orders.plainly = True
                self.course.handed = 0
            in_vain = self._is_in_vain(_ALL_WITH_PIXELS)
            if in_vain:
                why = f"none of the first batches could be recorded: {offloaded.why}"
        except Exception as error:  # the check failed, but the batch is complete
            why = f"a spot check failed with {type(error).__name__}: {error}"
        if why and self._repeats and self._finds and not self.course.tried and (in_vain or self._check.none_recorded):
            self.course.tries = why
            self._feed.orders.plainly = True
            self.course.handed = 0
        elif why:
            self.give_up(why)

    def _is_in_vain(self, batches: int) -> bool:
        """Return whether a plan that was found has moved nothing: at least so many batches were made with pixels."""
        offloaded = self.offloaded
        none = self._finds and not offloaded.recorded and offloaded.unrecorded >= batches
        return none and offloaded.certificate is not None and not self.course.given_up

    def _note(self) -> None:
        """Remember what was found out."""
        offloaded = self.offloaded
        if self._known is not None and self._key is not None and not offloaded.finds:
            found = Found(offloaded.plan, offloaded.certificate, self._check.first)
            self._known.note(self._key, offloaded.loader.dataset, found)

    def _is_under_remedy(self, loader: DataLoader[Any]) -> bool:
        """Return whether the next epoch of a loader, which starts new workers, has the remedy."""
        # Without gradients the loop evaluates; that code was not shown to work with batches on the device.
        if self.course.given_up or self._left_alone or torch.is_grad_enabled() != self._with_gradients:
            return False
        now = _settings(loader)
        changed = next((f"another {name}" for name in _SETTINGS if self._made_of[name] is not now[name]), "")
        if part := foreign_method(loader):
            changed = f"another {part}"
        if changed:
            self.give_up(f"the loader has {changed} than before")
            return False
        try:
            # The recorded transforms run for every sample: settings that the loop edits are followed.
            code = self._moved(code_only=True)
        except IndexError:
            code = []
        if code != self._code:
            changed = next((name for name, _ in set(self._code) - set(code)), "a transform")
            self.give_up(f"{changed} has changed since it was proven")
        return not self.course.given_up

    def _moved(self, code_only: bool = False) -> list[tuple[str, str]]:
        plan = self.offloaded.plan
        calls = [(spelled(call), call[-1]) for call in moved_calls(plan)]
        return moved_links(plan, self.offloaded.loader.dataset, code_only) + calls


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


#: Attributes of torch's iterators that are the loader's; those of the twin's iterator are ours.
_OF_LOADER = {
    "_dataset": "dataset",
    "_collate_fn": "collate_fn",
    "_worker_init_fn": "worker_init_fn",
    "_index_sampler": "_index_sampler",
    "_auto_collation": "_auto_collation",
    "_drop_last": "drop_last",
}


class RemediedIterator(_BaseDataLoaderIter):  # type: ignore[misc]
    """Iterator for the script's loop, as torch's: all other attributes are those of the iterator that asks the workers.

    A loader with persistent workers keeps it and resets it.
    """

    def __init__(self, run: RemediedRun, loader: DataLoader[Any]) -> None:
        # The parent's constructor would draw a seed and start the sampler; the twin's iterator does both.
        self._run = run
        self.__dict__.update((name, getattr(loader, of)) for name, of in _OF_LOADER.items())
        self._pin_memory = loader.pin_memory and torch.cuda.is_available()
        self._reset(loader)

    def __iter__(self) -> RemediedIterator:
        return self

    def __len__(self) -> int:
        return len(self._run.offloaded)

    def __next__(self) -> Any:
        batch = self._run.take(self._batches)
        self._num_yielded += 1
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_torchs" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._torchs, name)

    def __del__(self) -> None:
        """Do nothing: torch's iterator ends its workers itself."""

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin a new epoch; ``iter()`` of a loader with persistent workers calls this."""
        self._num_yielded = 0
        self._batches = self._run.epoch(loader)
        self._torchs: Any = getattr(self._batches, "source", self._batches)


class _InProcess(RemediedIterator, _SingleProcessDataLoaderIter):  # type: ignore[misc]
    pass


class _WithWorkers(RemediedIterator, _MultiProcessingDataLoaderIter):  # type: ignore[misc]
    def _shutdown_workers(self) -> None:
        if isinstance(self._batches, Flow):
            self._batches.close()  # its thread uses torch's iterator too
        self._torchs._shutdown_workers()


for _cls in (_InProcess, _WithWorkers):
    _torchs = _cls.__bases__[1]
    _cls.__name__, _cls.__qualname__, _cls.__module__ = _torchs.__name__, _torchs.__qualname__, _torchs.__module__
