"""Compare batches of a running training with their replay: the first ones before anything moves, and some now and then.

If no plan says what can move, the very first batch shows it (:func:`pipediag.replay.record.scouting.scouted`).

What is true of the first samples may not be true of all. A worker makes such a batch as without the remedy while it
records it (:func:`.certify.samples.executed`). The loop trains on that, and the replay of the recording is compared
with it.
"""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from ..clock import Clock
from ..replay.certify.certifying import Certificate, certify
from ..replay.certify.samples import Real, Recorded
from ..replay.layout import copied
from ..replay.plan import Plan
from ..usercode.objects import leaves
from .loader import OffloadedLoader, allowed

#: Minimum number of batches between two checks, and number of samples of each whose calls are compared one by one.
EVERY, SAMPLES = 500, 2
#: Number of samples to compare before anything moves: at most, and at least if an epoch has fewer.
FIRST, _FEWEST = 64, 8
#: Maximum share of a run's time for comparing.
_SHARE = 0.005
#: Seconds before the first check, which takes some hundred milliseconds.
AFTER = 60.0


class SpotCheck:
    """Checker that asks for batches that are executed too, and compares them.

    Without a certificate of the loader, it makes one from the first batches, and nothing moves until then.

    Args:
        every: minimum number of batches between two checks.
        after: seconds before the first check.
        first: batches that earlier loaders in its place have compared so far, under the same plan.
        finds: whether a function whose pixels differ may stay in the workers, and what can move is looked for again.
    """

    def __init__(
        self,
        offloaded: OffloadedLoader,
        clock: Clock,
        every: int = EVERY,
        after: float = AFTER,
        first: list[tuple[Real, Recorded]] | None = None,
        finds: bool = False,
    ) -> None:
        self.checked = 0
        self.none_recorded = False
        self._offloaded = offloaded
        self._orders = offloaded.feed.orders
        self._clock = clock
        self._every = every
        self._since = 0
        self._not_before = clock.now() + after
        self._finds = finds
        # A worker whose part of a stream has ended answers no request: one to each is answered.
        loader = offloaded.loader
        self._lasting = max(1, loader.num_workers) if isinstance(loader.dataset, IterableDataset) else 1
        self._needed = FIRST if offloaded.plan.moves and offloaded.certificate is None else 0
        self.first: list[tuple[Real, Recorded]] = [] if first is None else first

    def begin(self) -> None:
        """Order what a new epoch is to begin with."""
        self._orders.scouted = self._lasting if self._offloaded.finds else 0
        self._orders.held = self._offloaded.finds or bool(self._needed)
        if self._needed:
            self._needed = self._seen if self._seen >= _FEWEST else self._needed
            self._order_first()

    def saw(self, batch: Any) -> str:
        """Note that a batch is about to be handed to the loop. Return the evidence against the remedy, if any."""
        packed = self._offloaded.evidence(batch)
        evidence = None if packed is None else pickle.loads(packed)
        if isinstance(evidence, Plan):
            if self._offloaded.finds:  # else another iterator of this loader has found it already
                self._found(evidence)
            return ""
        if self._offloaded.finds:  # the batch was ordered under an earlier plan
            return ""
        if self._needed:
            return self._collect(batch, evidence)
        self._since += 1
        if self._since >= self._every and self._clock.now() >= self._not_before:
            self._since = 0
            self._orders.executed, self._orders.compared = 1, SAMPLES
        return "" if evidence is None else self.doubt(batch, evidence)

    def doubt(self, batch: Any, evidence: tuple[Real, Recorded]) -> str:
        """Compare a batch with the replay of its recording, and return what speaks against the remedy, or ""."""
        began = self._clock.now()
        certificate = certify([_pair(batch, evidence)], self._offloaded.plan, self._offloaded.device)
        self.checked += 1
        now = self._clock.now()
        self._not_before = now + (now - began) / _SHARE
        # Unrecorded samples are no failure: training makes them with pixels too.
        return "" if certificate.unrecorded == certificate.samples else _against(certificate, "a spot check")

    def _found(self, plan: Plan) -> None:
        self._offloaded.follow(plan)
        self._needed = FIRST if plan.moves else 0
        self._orders.held = bool(self._needed)
        self._order_first()

    def _order_first(self) -> None:
        """Order the batches that are missing in the first comparison."""
        missing = max(0, self._needed - self._seen)
        self._orders.executed = math.ceil(missing / (self._offloaded.loader.batch_size or self._largest))
        self._orders.compared = missing

    @property
    def _seen(self) -> int:
        return sum(recorded.number for _, recorded in self.first)

    @property
    def _largest(self) -> int:
        """Number of images in the largest sample so far of a loader without batching, which may be a batch already."""
        return max((recorded.number for _, recorded in self.first), default=_FEWEST)

    def _collect(self, batch: Any, evidence: tuple[Real, Recorded] | None) -> str:
        if evidence is not None:
            self.first.append(_pair(batch, evidence))
        if self._seen < self._needed:
            if evidence is not None and not self._orders.executed and self._offloaded.loader.batch_size is None:
                self._order_first()
            return ""
        plan, device = self._offloaded.plan, self._offloaded.device
        certificate = certify(self.first, plan, device)
        self.first.clear()
        self._needed = 0
        if self._finds and not certificate.passed and certificate.failed - plan.refused:
            start = allowed(device, plan.decodes, plan.refused | certificate.failed)
            self._offloaded.follow(start, finds=True)
            self._orders.scouted, self._orders.executed = self._lasting, 0
            return ""
        self._offloaded.follow(replace(plan, certified=certificate.certified))
        self._offloaded.certificate = certificate
        self._orders.held = False
        self.none_recorded = certificate.unrecorded == certificate.samples
        return _against(certificate, "the comparison of its first batches")


def _pair(batch: Any, evidence: tuple[Real, Recorded]) -> tuple[Real, Recorded]:
    real, recorded = evidence
    return (real if real.batch is not None else real._replace(batch=list(map(_on_cpu, leaves(batch))))), recorded


def _on_cpu(leaf: Any) -> Any:
    """Return a copy of a tensor in host memory: the loop may write into its batch before it is compared."""
    if not isinstance(leaf, Tensor):
        return leaf
    if not leaf.is_cpu:
        return leaf.cpu()
    return copied(leaf.detach()) if leaf.layout == torch.strided else leaf.detach().clone()


def _against(certificate: Certificate, what: str) -> str:
    """Return the failure in a certificate, or ""."""
    if certificate.passed:
        return ""
    if certificate.unrecorded == certificate.samples:
        return f"{what} found none that could be recorded: {certificate.why}"
    failed = [verdict.sentence for verdict in (*certificate.ops, *certificate.whole) if not verdict.passed]
    if failed:
        return f"{what} found other pixels than the CPU's: {failed[0]}"
    return f"{what} found other random draws" if certificate.faithful else f"{what} found unrecorded changes"
