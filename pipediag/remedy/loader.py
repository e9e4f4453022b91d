"""Run a loader's movable transforms on the device, a batch at a time, with the parameters that the workers draw.

To find out what can move, and to prove that the pixels stay the same, samples are made that the training did not
request, in a separate process (:mod:`pipediag.loop.separate_process`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..errors import UsageError, at_least
from ..loop.copies import require_no_state
from ..loop.iterators import foreign_method
from ..loop.separate_process import TrialFailed, tried, why_not_repeated
from ..replay.certify.certifying import Certificate, certify
from ..replay.certify.samples import Real, Recorded, real, recorded
from ..replay.decode.decoding import why_not
from ..replay.ops.op import NotRecordable
from ..replay.ops.triton import available
from ..replay.plan import Plan
from ..replay.record.scouting import find
from ..session.remedies import DECODING
from ..streams.executor import Executor, LoaderOnDevice
from ..streams.feed import Feed
from ..streams.pipeline import feed_of, placed
from ..streams.to_device import ToDevice

#: Number of samples for the trial of a plan.
_TRIED = 8
#: Maximum number of batches ready on the device in addition to the one that the loop has.
_DEPTH = 3


class OffloadedLoader(LoaderOnDevice):
    """Loader that yields the wrapped loader's batches on the device. All other attributes are the loader's own.

    It fetches, copies and transforms the batches ahead of the loop, on its own streams. Each batch is ready on the
    stream that is current when the loop asks for it.

    Attributes:
        plan: what is moved, and why the rest is not.
        finds: True while its first batches are to show what can be moved; the plan then says what is allowed.
        certificate: how its batches compare with the workers'; None if nothing is moved.
        unrecorded: number of batches so far that the workers had to make with pixels.
        why: the reason for the last of them.
    """

    def __init__(self, loader: DataLoader[Any], plan: Plan, device: torch.device, finds: bool = False) -> None:
        self.loader = loader
        self.plan = plan
        self.finds = finds
        self.device = placed(device)
        self.certificate: Certificate | None = None
        packs = finds or plan.moves
        self.feed: Feed = ToDevice(loader, plan, self.device, finds) if packs else feed_of(loader, self.device)
        self._executor = Executor(self.feed, (), _DEPTH)

    @property
    def unrecorded(self) -> int:
        return self.feed.unrecorded if isinstance(self.feed, ToDevice) else 0

    @property
    def why(self) -> str:
        return self.feed.why if isinstance(self.feed, ToDevice) else ""

    @property
    def recorded(self) -> int:
        """Number of batches so far that the workers have recorded."""
        return self.feed.recorded if isinstance(self.feed, ToDevice) else 0

    def follow(self, plan: Plan, finds: bool = False) -> None:
        """Make the batches under this plan from the next request on."""
        assert isinstance(self.feed, ToDevice), "it began with a plan"
        self.plan, self.finds, self.certificate = plan, finds, None
        self.feed.follow(plan)

    def evidence(self, batch: Any) -> bytes | None:
        """Return the evidence of a batch that was executed or scouted too, once; None for any other batch."""
        waiting = self.feed.evidence if isinstance(self.feed, ToDevice) else []
        number = next((k for k, (of, _) in enumerate(waiting) if of is batch), None)
        return None if number is None else waiting.pop(number)[1]


def offload(
    loader: DataLoader[Any],
    device: torch.device | str = "cuda",
    *,
    approximate: bool = False,
    samples: int = 64,
    transforms: bool = True,
) -> OffloadedLoader:
    """Wrap a loader so that its movable transforms run on ``device``.

    The workers run the user's own transforms on images without pixels, and draw the same parameters as before. The
    device applies the transforms to a whole batch at once, each sample with its own parameters. This is first tested on
    some of the loader's samples: a function whose pixels differ stays in the workers. ``certificate`` says whether the
    batches equal the loader's own for the same seed, or which transforms may differ on other samples.

    Args:
        loader: any ``DataLoader``; it is not changed.
        device: where the batches go.
        approximate: also decode JPEGs on the device that the dataset opens with Pillow or ``torchvision.io``. In tests
            on an H200 their pixels equalled the CPU's; a difference of more than one level on the samples is refused.
            It needs a GPU with a JPEG engine, triton, and ``pip install "pipediag[decode]"``.
        samples: number of samples to test.
        transforms: False moves none. What is left is the hand-off: workers write batches into reused page-locked
            memory, and a thread copies them to the device ahead of the loop.

    Raises:
        UsageError: ``loader`` is not a ``DataLoader``, or saves its place in the epoch, or ``samples`` is not a
            positive whole number.
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(f"offload() takes a torch DataLoader, not {type(loader).__name__}")
    require_no_state(loader)
    samples = at_least(1, "samples", samples)
    device = torch.device(device)
    if not transforms:
        return OffloadedLoader(loader, Plan(), device)
    if part := foreign_method(loader, around=True):
        why = f"{part}, which is not torch's own code, gets the batches in the form in which workers send them"
        return OffloadedLoader(loader, Plan(reasons=(why,)), device)
    refused: frozenset[str] = frozenset()
    while True:
        offloaded = OffloadedLoader(loader, _plan(loader, device, approximate, refused), device)
        if not offloaded.plan.moves:
            return offloaded
        try:
            proof = offloaded.certificate = certificate(offloaded, samples=samples)
        except Exception as error:  # a trial in a worker failed, or the device has no such kernel
            why = str(error) if isinstance(error, TrialFailed) else f"{type(error).__name__}: {error}"
            return OffloadedLoader(loader, Plan(reasons=(*offloaded.plan.reasons, why)), device)
        if proof.passed:
            only_calls = offloaded.plan.begins and not offloaded.plan.pieces
            compared = frozenset(verdict.name for verdict in proof.ops) if only_calls else offloaded.plan.compared
            plan = replace(offloaded.plan, compared=compared, certified=proof.certified)
            offloaded = OffloadedLoader(loader, plan, device)
            offloaded.certificate = proof
            return offloaded
        if proof.failed <= refused:  # no single function is the cause
            none = f"none of {proof.samples} samples could be recorded: {proof.why}"
            differs = none if proof.unrecorded == proof.samples else "its batches differ from those of the workers"
            reasons = (*offloaded.plan.reasons, differs)
            nothing = OffloadedLoader(loader, Plan(reasons=reasons), device)
            nothing.certificate = proof
            return nothing
        refused |= proof.failed


def certificate(
    loader: DataLoader[Any] | OffloadedLoader,
    device: torch.device | str = "cuda",
    *,
    samples: int = 64,
    approximate: bool = False,
) -> Certificate:
    """Compare a loader's moved transforms with the CPU, on the first samples that its sampler yields.

    Args:
        loader: a ``DataLoader``, or the result of :func:`offload`, which then keeps its plan and device.
        device: where the moved transforms run.
        samples: number of samples to make both ways.
        approximate: as for :func:`offload`.
    """
    if not isinstance(loader, OffloadedLoader):
        device = torch.device(device)
        loader = OffloadedLoader(loader, _plan(loader, device, approximate), device)
    return certify(witnesses(loader.loader, loader.plan, samples), loader.plan, loader.device)


def allowed(device: torch.device, approximate: bool, refused: frozenset[str] = frozenset()) -> Plan:
    """Return the plan to begin with: it moves nothing yet."""
    plan = Plan(fuse=available(device), refused=refused)
    if approximate:
        why = "they would differ from Pillow's by more than one level" if DECODING in refused else why_not(device)
        plan = replace(plan, decodes=not why, undecoded=why)
    return plan


def _plan(
    loader: DataLoader[Any], device: torch.device, approximate: bool, refused: frozenset[str] = frozenset()
) -> Plan:
    """Return the plan for a loader, tried on a few of its samples."""
    plan = allowed(device, approximate, refused)
    if isinstance(loader.dataset, IterableDataset) and (why := why_not_repeated(loader.dataset)):
        return replace(plan, reasons=(why,))
    try:
        return found(loader, plan, _TRIED)
    except TrialFailed as error:
        return replace(plan, reasons=(str(error),))


#: Number of samples that a process of :func:`witnesses` makes at a time, and maximum number of processes at once.
_TOGETHER, _PROCESSES = 8, 8

_tried = partial(tried, refusal=NotRecordable)


def found(loader: DataLoader[Any], start: Plan, samples: int) -> Plan:
    """Return what can be recorded: see :func:`pipediag.replay.record.scouting.find`."""
    return next(_tried(loader, partial(find, start=start), samples))  # type: ignore[no-any-return]


def witnesses(loader: DataLoader[Any], plan: Plan, samples: int) -> Iterator[tuple[Real, Recorded]]:
    """Yield samples made both ways, each in processes of its own: see :mod:`pipediag.replay.certify.samples`."""
    seed = torch.initial_seed()
    # Not at the same time: the processes may share connections, which cannot be reopened as files are. Where the loader
    # has several workers, these share them too.
    for_real = list(_tried(loader, real, samples, _TOGETHER, seed, most=_PROCESSES))
    again = _tried(loader, partial(recorded, plan=plan), samples, _TOGETHER, seed, most=_PROCESSES)
    return zip(for_real, again, strict=True)
