"""Run trials on the user's own samples in a separate process.

To find out what can be moved, and to prove that the pixels stay the same, samples must be made that the training did
not request. Datasets and transforms may keep state, open files and count. So a worker makes the samples and then ends,
and the user's objects do not change.
"""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from ..loop.wrappers import InitWorker
from ..usercode import randomness
from .certificate_samples import Real, Recorded, real, recorded
from .custom import Reference, Refused, reference_of
from .files import own_positions
from .ops import NotRecordable
from .plan import Place, Plan, link_at
from .scouting import Found, find, given_to
from .worker import PackingSide, handed_on

Collate = Callable[[Any], Any]
Task = Callable[[Any, Collate, list[Any]], Iterator[Any]]

#: Number of samples in a batch of a trial.
_TOGETHER = 8


class TrialFailed(NotRecordable):
    """Error: the samples for a trial could not be made."""


def found(loader: DataLoader[Any], start: Plan, samples: int) -> Found:
    """Return what can be recorded: see :func:`pipediag.remedy.scouting.find`."""
    return next(_tried(loader, partial(_find, start), samples))  # type: ignore[no-any-return]


def reference_at(loader: DataLoader[Any], place: Place, samples: int) -> Reference:
    """Return the results of the user's own link at ``place`` for its real inputs.

    Raises:
        Refused: the link has to stay in the worker.
    """
    reference: Reference | Refused = next(_tried(loader, partial(_reference, place), samples))
    if isinstance(reference, Refused):
        raise reference
    return reference


def witnesses(
    loader: DataLoader[Any], plan: Plan, samples: int, seed: int | None = None
) -> Iterator[tuple[Real, Recorded]]:
    """Return samples made both ways, each in its own process: see :mod:`pipediag.remedy.certificate_samples`.

    ``seed`` seeds the workers; the default is the process's own initial seed.
    """
    seed = torch.initial_seed() if seed is None else seed
    # One after the other: the processes may share connections, which cannot be reopened as files are.
    for_real = list(_tried(loader, _real, samples, seed))
    return zip(for_real, _tried(loader, partial(_recorded, plan), samples, seed), strict=True)


# Tasks are module-level functions, because they may be pickled for the worker.


def _find(start: Plan, dataset: Any, collate: Collate, indices: list[Any]) -> Iterator[Found]:
    one = find(dataset, collate, indices, start)
    yield one._replace(plan=replace(one.plan, own={}))  # this process has them, and they may not be picklable


def _reference(place: Place, dataset: Any, collate: Collate, indices: list[Any]) -> Iterator[Reference | Refused]:
    images = given_to(dataset, place, indices)
    try:
        if images is None:
            raise Refused("it takes or gives something else than one plain tensor")
        yield reference_of(link_at(dataset, place), images)
    except Refused as refused:
        yield Refused(str(refused))


def _real(dataset: Any, collate: Collate, indices: list[Any]) -> Iterator[Real]:
    for some in _groups(indices):
        yield real(dataset, collate, some)


def _recorded(plan: Plan, dataset: Any, collate: Collate, indices: list[Any]) -> Iterator[Recorded]:
    for some in _groups(indices):
        yield recorded(dataset, collate, plan, some)


def _groups(indices: list[Any]) -> Iterator[list[Any]]:
    return (indices[begin : begin + _TOGETHER] for begin in range(0, len(indices), _TOGETHER))


def _tried(loader: DataLoader[Any], task: Task, samples: int, seed: int = 0) -> Iterator[Any]:
    """Yield the results of ``task`` in its own worker, on the first samples that the loader's own sampler requests."""
    runner = _Runner(loader, task, samples)
    user = loader.worker_init_fn if loader.num_workers else None
    with randomness.undisturbed():
        worker = DataLoader(
            runner,
            batch_size=None,
            sampler=_Endless(),
            num_workers=1,
            prefetch_factor=1,
            collate_fn=handed_on,
            worker_init_fn=InitWorker(PackingSide(loader.dataset, loader.collate_fn, Plan()), user),
            multiprocessing_context=loader.multiprocessing_context or _context(loader),
            generator=torch.Generator().manual_seed(seed),
        )
        try:
            with _garbage_left_to_this_process():
                results = iter(worker)
        except Exception as error:  # the start method pickles the dataset, which cannot be pickled
            raise TrialFailed(f"it cannot be tried in a process of its own: {error}") from None
    try:
        while True:
            try:
                result = pickle.loads(next(results))
            except RuntimeError as error:  # the process died
                raise TrialFailed(f"trying it ended the process: {error}") from None
            if isinstance(result, _Over):
                return
            if isinstance(result, TrialFailed):
                raise result
            yield result
    finally:
        results._shutdown_workers()  # now, so that processes forked later do not inherit it


@contextmanager
def _garbage_left_to_this_process() -> Iterator[None]:
    """Freeze garbage before the fork: collecting a device tensor would crash the forked process."""
    if gc.get_freeze_count():  # the user's frozen objects could not be told from those frozen here
        gc.collect()
        yield
        return
    gc.freeze()  # a hundred times faster than collecting it
    try:
        yield
    finally:
        gc.unfreeze()


def _context(loader: DataLoader[Any]) -> str | None:
    """Return "fork" on Linux for a loader without workers, which may hold objects that cannot be pickled; otherwise
    None."""
    return "fork" if loader.num_workers == 0 and sys.platform == "linux" else None


class _Over:
    """Marker for the end of the results."""


class _Endless(Sampler[int]):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


class _Runner(Dataset):  # type: ignore[misc]
    """Dataset that yields a task's results in sequence, pickled at once, because the objects may change before they are
    sent."""

    def __init__(self, loader: DataLoader[Any], task: Task, samples: int) -> None:
        self._dataset = loader.dataset
        self._collate = collate_of(loader)
        self._sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._batched = loader.batch_sampler is not None
        self._task = task
        self._samples = samples
        self._results: Iterator[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sampler": _with_generators(self._sampler, _stored)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _sampler=_with_generators(state["_sampler"], _restored))

    def __getitem__(self, number: int) -> bytes:
        try:
            if self._results is None:
                own_positions()
                self._results = self._task(self._dataset, self._collate, self._indices())
            return pickle.dumps(next(self._results, _Over()))
        except NotRecordable as error:
            return pickle.dumps(TrialFailed(str(error)))
        except Exception as error:
            return pickle.dumps(TrialFailed(f"trying it raised {type(error).__name__}: {error}"))

    def _indices(self) -> list[Any]:
        asked = itertools.chain.from_iterable(self._sampler) if self._batched else self._sampler
        indices = list(itertools.islice(asked, self._samples))
        if not indices:
            raise TrialFailed("the loader asks for no sample")
        return indices


def _with_generators(sampler: Any, changed: Callable[[Any], Any]) -> Any:
    """Return a sampler, and its inner sampler, with generators converted: torch's own cannot be pickled."""
    if not hasattr(sampler, "__dict__"):
        return sampler
    sampler = copy.copy(sampler)
    for name, value in vars(sampler).items():
        setattr(sampler, name, _with_generators(value, changed) if isinstance(value, Sampler) else changed(value))
    return sampler


class _Stored:
    """Saved state of a generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.state = generator.get_state().numpy().tobytes()


def _stored(value: Any) -> Any:
    return _Stored(value) if isinstance(value, torch.Generator) else value


def _restored(value: Any) -> Any:
    if not isinstance(value, _Stored):
        return value
    generator = torch.Generator()
    generator.set_state(torch.frombuffer(bytearray(value.state), dtype=torch.uint8))
    return generator


def collate_of(loader: DataLoader[Any]) -> Callable[[Sequence[Any]], Any]:
    """Return the function that makes a batch of samples; for a loader without batching, it passes on each sample
    separately."""
    collate: Callable[[Any], Any] = loader.collate_fn
    return collate if loader.batch_sampler is not None else _OneByOne(collate)


class _OneByOne:
    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Sequence[Any]) -> list[Any]:
        return [self._collate(sample) for sample in samples]
