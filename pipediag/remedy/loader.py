"""A loader whose movable transforms run on the device, a batch at a time, with the draws the workers make."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..errors import UsageError
from ..ladder import tree
from .certifying import Certificate, certify
from .plan import Plan, make_plan
from .replay import replay
from .triton import available
from .worker import InitWorker, RecordedDataset, Station, Unrecorded, handed_on

#: Samples that a plan is tried on.
_TRIED = 8


class OffloadedLoader:
    """Yields the loader's batches on the device. Everything else is the loader's own.

    Attributes:
        plan: what is moved, and why the rest is not.
        certificate: how its batches compare to the workers'; None where nothing is moved.
        unrecorded: batches so far that the workers had to make for real.
        why: the reason for the last of them.
    """

    def __init__(self, loader: DataLoader[Any], plan: Plan, device: torch.device) -> None:
        self.loader = loader
        self.plan = plan
        self.device = device
        self.certificate: Certificate | None = None
        self.unrecorded = 0
        self.why = ""
        self._twin = _recorded(loader, plan, device) if plan.pieces else loader

    def __iter__(self) -> Iterator[Any]:
        for sent in self.sent():
            yield self._batch(sent)

    def sent(self) -> Iterator[Any]:
        """The batches as the workers send them, before anything is done on the device."""
        return iter(self._twin)

    def _batch(self, sent: Any) -> Any:
        if not self.plan.pieces:
            return tree.move(sent, self.device)
        if isinstance(sent, Unrecorded):
            self.unrecorded += 1
            self.why = sent.reason
            return tree.move(sent.batch, self.device)
        return replay(sent, self.device, self.plan.moved)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


def offload(
    loader: DataLoader[Any],
    device: torch.device | str = "cuda",
    *,
    allow_approximate: bool = False,
    samples: int = 64,
) -> OffloadedLoader:
    """Wrap a loader so that what can be moved of its transforms runs on ``device``.

    The workers run the user's own transforms on images without pixels, which draw their parameters as ever; the
    device applies them to a whole batch at once, each sample with its own. The batches equal the loader's own for the
    same seed, which is tried on some of its samples first: a function whose pixels differ there stays in the workers.

    Args:
        loader: any ``DataLoader``; it is not changed.
        device: where the batches go.
        allow_approximate: also move what runs on Pillow's pictures, whose pixels then differ slightly.
        samples: how many samples it is tried on.

    Raises:
        UsageError: ``loader`` is no ``DataLoader``.
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(f"offload() takes a torch DataLoader, not {type(loader).__name__}")
    device = torch.device(device)
    refused: frozenset[str] = frozenset()
    while True:
        offloaded = OffloadedLoader(loader, _plan(loader, device, allow_approximate, refused), device)
        if not offloaded.plan.pieces:
            return offloaded
        proof = offloaded.certificate = certificate(offloaded, samples=samples)
        if proof.passed or allow_approximate:
            return offloaded
        if proof.failed <= refused:  # no single function is to blame
            reasons = (*offloaded.plan.reasons, "its batches differ from those of the workers")
            return OffloadedLoader(loader, Plan((), reasons), device)
        refused |= proof.failed


def certificate(
    loader: DataLoader[Any] | OffloadedLoader,
    device: torch.device | str = "cuda",
    *,
    samples: int = 64,
    allow_approximate: bool = False,
) -> Certificate:
    """Hold what can be moved of a loader's transforms against the CPU, on samples spread over its own dataset.

    Args:
        loader: a ``DataLoader``, or what :func:`offload` made of one, which then keeps its plan and device.
        device: where the moved transforms run.
        samples: how many are made both ways.
        allow_approximate: as for :func:`offload`.
    """
    if not isinstance(loader, OffloadedLoader):
        device = torch.device(device)
        loader = OffloadedLoader(loader, _plan(loader, device, allow_approximate), device)
    indices = _spread(len(loader.dataset), samples)
    return certify(loader.dataset, _collate(loader.loader), loader.plan, loader.device, indices)


def _plan(
    loader: DataLoader[Any], device: torch.device, allow_approximate: bool, refused: frozenset[str] = frozenset()
) -> Plan:
    """The plan for a loader, tried on a few of its samples in this process."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return Plan((), ("the samples of an iterable dataset cannot be drawn twice, to try what can be moved",))
    indices = _spread(len(dataset), _TRIED)
    return make_plan(dataset, _collate(loader), indices, allow_approximate, available(device), device, refused)


def _collate(loader: DataLoader[Any]) -> Callable[[Any], Any]:
    """What makes a batch of samples; a loader that does no batching hands every sample on by itself."""
    collate: Callable[[Any], Any] = loader.collate_fn
    if loader.batch_sampler is not None:
        return collate
    return lambda samples: [collate(sample) for sample in samples]


def _spread(length: int, count: int) -> list[int]:
    """``count`` indices spread over a dataset, all of them where it is smaller."""
    return sorted({i * length // count for i in range(count)})


def _recorded(loader: DataLoader[Any], plan: Plan, device: torch.device) -> DataLoader[Any]:
    """A loader with the same sampler, generator and workers' settings, whose batches are packed."""
    station = Station(loader.dataset, loader.collate_fn, plan)
    twin = copy.copy(loader)
    twin.__dict__.update(  # a loader refuses assignments once it is made
        dataset=RecordedDataset(station),
        collate_fn=handed_on,
        worker_init_fn=InitWorker(station, loader.worker_init_fn),
        pin_memory=loader.pin_memory or device.type == "cuda",
        _iterator=None,
    )
    return twin
