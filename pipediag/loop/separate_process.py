"""Make samples in a separate process, so that neither the user's objects nor their generators change.

Datasets and transforms may keep state, open files and count, also in memory that processes share. So a worker makes the
samples that the training did not request, and then ends.
"""

from __future__ import annotations

import copy
import fcntl
import io
import itertools
import math
import multiprocessing
import os
import pickle
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, Sampler, get_worker_info

from ..frames import in_one_line
from ..lifeline import keep_garbage_in_forks
from ..measure.machine import allowed_cpus
from ..usercode import randomness
from ..usercode.attributes import has_attribute
from .private_memory import page_locked, unshare_memory
from .read_only import read_only
from .wrappers import InitWorker

Collate = Callable[[Any], Any]
#: Function of a dataset, its collate function and sample indices. It is pickled for the worker.
Task = Callable[[Any, Collate, list[Any]], Any]

#: Linux's table of this process's open files; the first three, its standard input and output, stay shared.
_OPEN_FILES, _STANDARD = "/proc/self/fd", 2
#: Seconds after which workers that send nothing are looked at, and number of looks that must see them stand still.
_LOOK, _IDLE = 10, 3


class TrialFailed(Exception):
    """Error: the samples for a trial could not be made."""


def tried(
    loader: DataLoader[Any],
    task: Task,
    samples: int,
    together: int | None = None,
    seed: int = 0,
    refusal: type[Exception] = TrialFailed,
    most: int = 1,
) -> Iterator[Any]:
    """Run ``task`` in a worker of its own on the first samples that the loader's sampler requests; yield its results.

    Runs with equal arguments begin in equal states, also each of several workers.

    Args:
        samples: number of samples.
        together: number of samples for one call of the task; None for all of them.
        seed: of the worker's generators.
        refusal: the task's own error, whose message is passed on unchanged.
        most: maximum number of workers. They are no more than the loader's own, and one if starting them takes long.

    Raises:
        TrialFailed: the samples could not be made.
    """
    runner = _Runner(loader, task, samples, together or samples, refusal)
    user = loader.worker_init_fn if loader.num_workers else None
    # The objects of a loader without workers perhaps cannot be pickled.
    forked = "fork" if loader.num_workers == 0 and sys.platform == "linux" else None
    context = loader.multiprocessing_context or forked
    forks = getattr(context, "_name", context or multiprocessing.get_start_method()) == "fork"
    most = 1 if runner.is_stream else most
    useful = min(most, loader.num_workers, math.ceil(samples / runner.together), len(allowed_cpus())) if forks else 1
    shared = page_locked(loader.dataset, loader.collate_fn) if forks else frozenset()
    with randomness.undisturbed():
        worker = DataLoader(
            runner,
            batch_size=None,
            num_workers=max(1, useful),
            prefetch_factor=1,
            timeout=_LOOK,
            collate_fn=_unchanged,
            worker_init_fn=_Init(InitWorker(_OfWorker(loader.dataset), user), shared),
            multiprocessing_context=context,
            generator=torch.Generator().manual_seed(seed),
        )
        try:
            keep_garbage_in_forks()
            results = iter(worker)
        except Exception as error:  # the start method pickles the dataset, which cannot be pickled
            raise TrialFailed(f"it cannot be tried in a process of its own: {error}") from None
    try:
        while True:
            try:
                result = pickle.loads(_next(results))
            except StopIteration:
                return
            except RuntimeError as error:  # the process died
                raise TrialFailed(f"trying it ended the process: {error}") from None
            if isinstance(result, TrialFailed):
                raise result
            yield result
    finally:
        results._shutdown_workers()  # now, so that processes forked later do not inherit it


def _next(results: Any) -> bytes:
    """Return the next result. Raises TrialFailed if the workers have stopped: no time limit fits all code.

    The threads that a library has started, and locks that they hold, are not forked with a process.
    """
    looks = [_worked(results)]
    while True:
        try:
            result: bytes = next(results)
            return result
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
        looks = [*looks[-_IDLE:], _worked(results)]
        if len(looks) > _IDLE and looks[0] == looks[-1] is not None:
            raise TrialFailed(
                f"its code stood still for {_IDLE * _LOOK} s in a process of its own, as code does that needs threads "
                "from before fork(); it may also hang in workers without multiprocessing_context='spawn'"
            )


def _worked(results: Any) -> float | None:
    """Return the CPU time of the workers, in seconds; None unless all sleep."""
    total = 0.0
    for worker in results._workers:
        try:
            process = psutil.Process(worker.pid)
            if process.status() != psutil.STATUS_SLEEPING:
                return None
            total += sum(process.cpu_times()[:2])
        except psutil.Error:
            return None
    return total


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, _STANDARD):
        with suppress(OSError):
            if os.get_inheritable(standard):  # else the script has closed it, and a file that it needs has its number
                os.dup2(nowhere, standard)
    os.close(nowhere)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - notebooks have others than the process's


def _unchanged(result: bytes) -> bytes:
    return result


class _OfWorker:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def ready(self) -> None:
        """Do nothing: no preparation is needed."""


class _Init:
    """Init function of the worker: before any code of the user's runs, it gets files and memory of its own.

    What that code prints or writes is not seen: it does so again where the training asks for the sample.
    """

    def __init__(self, init: InitWorker, shared: frozenset[int]) -> None:
        self._init = init
        self._shared = shared

    def __call__(self, worker_id: int) -> None:
        _silence()
        _own_files()
        unshare_memory(self._shared)
        read_only()
        self._init(worker_id)


class _Runner(IterableDataset):  # type: ignore[misc]
    """Dataset that yields a task's results, pickled at once, because the objects may change before they are sent."""

    def __init__(
        self, loader: DataLoader[Any], task: Task, samples: int, together: int, refusal: type[Exception]
    ) -> None:
        self.is_stream = isinstance(loader.dataset, IterableDataset)
        self._dataset = Numbered(loader.dataset) if self.is_stream else loader.dataset
        self._batched = loader.batch_sampler is not None
        self._collate = loader.collate_fn if self._batched else partial(_each, loader.collate_fn)
        self._sampler = loader.batch_sampler if self._batched else loader.sampler
        self._task = task
        self._samples = samples
        self.together = together
        self._refusal = refusal

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sampler": _with_stored_generators(self._sampler)}

    def __iter__(self) -> Iterator[bytes]:
        some: list[Any] = []
        try:
            indices = self._indices()
            info = get_worker_info()
            assert info is not None, "it runs in a worker"
            for begin in range(info.id * self.together, len(indices), info.num_workers * self.together):
                some = indices[begin : begin + self.together]
                yield pickle.dumps(self._task(self._dataset, self._collate, some))
        except (self._refusal, TrialFailed) as error:
            yield pickle.dumps(TrialFailed(str(error)))
        except Exception as error:
            own = self._own_error(some)
            why = f"trying it raised {in_one_line(error)}" if own is None else own
            yield pickle.dumps(TrialFailed(why))

    def _own_error(self, indices: list[Any]) -> str | None:
        """Describe the error that the dataset itself raises on one of the samples; None if it raises none."""
        for index in indices:
            try:
                self._dataset[index]
            except Exception as error:
                return f"the dataset itself raises {in_one_line(error)} (sample {index})"
        return None

    def _indices(self) -> list[Any]:
        if self.is_stream:
            return list(range(self._samples))
        asked = itertools.chain.from_iterable(self._sampler) if self._batched else self._sampler
        indices = list(itertools.islice(asked, self._samples))
        if not indices:
            raise TrialFailed("the loader asks for no sample, as that of an empty dataset does")
        return indices


class Numbered:
    """An iterable dataset's samples by number. Number 0 begins the stream again, and so does its end."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._samples: Iterator[Any] = iter(())

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        if numbers[0] == 0:
            self._samples = iter(self.stream)
        samples = list(itertools.islice(self._samples, len(numbers)))
        if not samples:
            self._samples = iter(self.stream)
            samples = list(itertools.islice(self._samples, len(numbers)))
        if not samples:
            raise TrialFailed("the iterable dataset yields no sample")
        return samples

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]


#: Depth to which the attributes of an iterable dataset are looked through.
_DEPTH = 4


def why_not_repeated(stream: Any) -> str:
    """Return why the samples of an iterable dataset cannot be drawn in another process too; empty if they can."""
    if isinstance(stream, IterDataPipe):
        return "the loader shards a data pipe of torch's itself; use an IterableDataset that yields its samples"
    if has_attribute(type(stream), "__next__"):
        return "the iterable dataset is its own iterator; write __iter__ as a generator function, which begins anew"
    name = _used_up(stream, _DEPTH)
    return f"the iterable dataset holds {name}, which a trial would use up; make it in __iter__" if name else ""


def _used_up(value: Any, depth: int) -> str:
    """Return the name of something that can be read only once, in what the value holds; empty if there is none."""
    for name, part in _parts(value):
        if isinstance(part, (socket.socket, Connection)) or (isinstance(part, Iterator) and not _is_file(part)):
            return name
        inner = _used_up(part, depth - 1) if depth else ""
        if inner:
            return f"{name}.{inner}"
    return ""


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        return [("an item", part) for part in value[:_MOST]]
    held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return [(str(name), part) for name, part in itertools.islice(held.items(), _MOST) if not isinstance(part, type)]


#: Number of a container's items that are looked at.
_MOST = 64


def _is_file(value: Any) -> bool:
    """Return whether the value is a file on a disk, which a process can open again."""
    try:
        return isinstance(value, io.IOBase) and stat.S_ISREG(os.fstat(value.fileno()).st_mode)
    except (OSError, ValueError):
        return isinstance(value, (io.BytesIO, io.StringIO))


def _each(collate: Callable[[Any], Any], samples: list[Any]) -> list[Any]:
    """Collate as a loader without batching does: each sample separately."""
    return [collate(sample) for sample in samples]


def _with_stored_generators(sampler: Any) -> Any:
    """Return a sampler, and its inner sampler, whose generators can be pickled."""
    if not has_attribute(sampler, "__dict__"):
        return sampler
    sampler = copy.copy(sampler)
    for name, value in [*vars(sampler).items()]:
        if isinstance(value, Sampler):
            setattr(sampler, name, _with_stored_generators(value))
        elif isinstance(value, torch.Generator):
            setattr(sampler, name, _Stored(value))
    return sampler


class _Stored:
    """Generator that can be pickled. Torch's own pickling loses a reference to None each time."""

    def __init__(self, generator: torch.Generator) -> None:
        self._state = generator.get_state().numpy().tobytes()

    def __reduce__(self) -> tuple[Any, ...]:
        return _generator, (self._state,)


def _generator(state: bytes) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return generator


def _own_files() -> None:
    """Reopen every regular file of this forked process at its current position and for reading, on Linux.

    A fork shares the position in every open file with its parent, which may be reading: a read in one moves the other.
    What is written into a file that is open for writing only goes nowhere.
    """
    if not os.path.isdir(_OPEN_FILES):
        return
    for name in os.listdir(_OPEN_FILES):
        descriptor = int(name)
        try:
            if descriptor <= _STANDARD or not stat.S_ISREG(os.fstat(descriptor).st_mode):
                continue
            writes = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            fresh = os.open(os.devnull if writes else f"{_OPEN_FILES}/{descriptor}", os.O_WRONLY if writes else 0)
        except OSError:  # closed since the listing, or deleted
            continue
        os.lseek(fresh, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)  # without effect on a device
        os.dup2(fresh, descriptor, inheritable=os.get_inheritable(descriptor))
        os.close(fresh)
