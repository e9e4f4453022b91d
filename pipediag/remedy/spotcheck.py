"""Check batches of a running training now and then: what is true of the first samples may not be true of all.

A worker makes such a batch as without the remedy while it records it (:mod:`.executing`). The loop trains on that,
and the replay of the recording is compared with it.
"""

from __future__ import annotations

import pickle
from typing import Any

from torch import Tensor

from ..measure.clock import Clock
from ..usercode import tree
from .certifying import Certificate, certify
from .loader import OffloadedLoader

#: Minimum number of batches between two checks.
EVERY = 500
#: Maximum share of a run's time for comparing.
_SHARE = 0.005
#: Seconds before the first check, which takes some hundred milliseconds.
AFTER = 60.0


class SpotCheck:
    """Checker that asks for batches that are executed too, and compares them."""

    def __init__(self, offloaded: OffloadedLoader, clock: Clock, every: int = EVERY, after: float = AFTER) -> None:
        self.checked = 0
        self._offloaded = offloaded
        self._clock = clock
        self._every = every
        self._since = 0
        self._not_before = clock.now() + after

    def saw(self, batch: Any) -> str:
        """Note that a batch is about to be handed to the loop. Return the evidence against the remedy, if any."""
        self._since += 1
        if self._since >= self._every and self._clock.now() >= self._not_before:
            self._since = 0
            self._offloaded.feed.orders.executed = 1
        evidence = self._offloaded.evidence(batch)
        return "" if evidence is None else self.doubt(batch, evidence)

    def doubt(self, batch: Any, evidence: bytes) -> str:
        """Compare a batch with the replay of its recording, and return what speaks against the remedy, or ""."""
        began = self._clock.now()
        real, recorded = pickle.loads(evidence)
        if real.batch is None:
            real = real._replace(batch=tree.map_leaves(batch, _on_cpu))
        certificate = certify([(real, recorded)], self._offloaded.plan, self._offloaded.device)
        self.checked += 1
        now = self._clock.now()
        self._not_before = now + (now - began) / _SHARE
        return _against(certificate)


def _on_cpu(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, Tensor) else leaf


def _against(certificate: Certificate) -> str:
    """Return the failure in a certificate. Unrecorded samples are no failure: training makes them with pixels too."""
    if certificate.passed or certificate.unrecorded == certificate.samples:
        return ""
    failed = [verdict.sentence for verdict in (*certificate.ops, *certificate.whole) if not verdict.passed]
    if failed:
        return f"a spot check found other pixels than the CPU's: {failed[0]}"
    return "a spot check found other random draws" if certificate.faithful else "a spot check found unrecorded changes"
