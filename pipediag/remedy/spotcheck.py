"""Check samples of a running training now and then: what is true of the first samples may not be true of all."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..loop.copies import plain_twin, wrap_sampler
from ..measure.clock import Clock
from .certifying import Certificate, certify
from .loader import OffloadedLoader
from .trial import witnesses

#: Minimum number of batches between two checks, and number of samples per check.
EVERY, SAMPLES = 500, 2
#: Fraction of a run's time that checks may take.
_SHARE = 0.005
#: Seconds before the first check, which takes some hundred milliseconds.
AFTER = 60.0


class SpotCheck:
    """Checker that picks samples of passing batches and compares their replay with the CPU's result.

    Separate processes make the samples (:mod:`pipediag.remedy.trial`), so the run's dataset and random numbers do not
    change. ``aside`` keeps the loaders iterated for this apart from the script's.
    """

    def __init__(
        self,
        offloaded: OffloadedLoader,
        aside: Callable[[], AbstractContextManager[None]],
        clock: Clock,
        every: int = EVERY,
        after: float = AFTER,
    ) -> None:
        self.checked = 0
        self._offloaded = offloaded
        self._aside = aside
        self._clock = clock
        self._every = every
        self._since = 0
        self._not_before = clock.now() + after
        self._indices: Any = None
        self._seeds = random.Random(0)  # independent of the script's generators

    def saw(self, indices: Any) -> None:
        """Note that a batch has been handed to the loop, and the indices that were requested last."""
        self._since += 1
        self._indices = indices

    @property
    def due(self) -> bool:
        return self._since >= self._every and self._clock.now() >= self._not_before

    def doubt(self) -> str:
        """Check samples of the latest request, and return the evidence against the remedy; empty if there is none.

        Raises:
            TrialFailed: the samples could not be made.
        """
        began = self._clock.now()
        loader = plain_twin(self._offloaded.loader)
        batched = loader.batch_sampler is not None
        chosen = [list(self._indices)[:SAMPLES]] if batched else [self._indices]
        wrap_sampler(loader, lambda sampler: chosen)
        with self._aside():
            made = witnesses(loader, self._offloaded.plan, SAMPLES, seed=self._seeds.getrandbits(32))
            certificate = certify(made, self._offloaded.plan, self._offloaded.device)
        self.checked += 1
        self._since = 0
        now = self._clock.now()
        self._not_before = now + (now - began) / _SHARE
        return _against(certificate)


def _against(certificate: Certificate) -> str:
    """Return the failure in a certificate. Unrecorded samples are no failure: training makes them with pixels too."""
    if certificate.passed or certificate.unrecorded == certificate.samples:
        return ""
    failed = [verdict.sentence for verdict in (*certificate.ops, *certificate.whole) if not verdict.passed]
    if failed:
        return f"a spot check found other pixels than the CPU's: {failed[0]}"
    return "a spot check found other random draws" if certificate.faithful else "a spot check found unrecorded changes"
