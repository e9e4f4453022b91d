"""Account for what pipediag itself does in a worker: never charged to the user, and bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Maximum share of a worker's time for inspecting samples.
SHARE = 0.01
#: Seconds that inspection may take in any case. A script of ten steps needs an answer from its first batches, of which
#: 1 % would be less than a millisecond; it is spent once, before the first window if it can be.
ALLOWANCE = 0.2


class OwnTime:
    """pipediag's own seconds in a worker, by batch and in total.

    Attributes:
        seconds: of the batch being made.
        busy: seconds that earlier batches have kept the worker busy.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.busy = 0.0
        self._spent = 0.0  # in earlier batches

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count the time within the context; contexts must not be nested."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def end(self, busy: float) -> float:
        """End a batch that has kept the worker busy for so many seconds; return pipediag's own part of them."""
        own, self.seconds = min(self.seconds, busy), 0.0
        self._spent += own
        self.busy += busy
        return own

    @property
    def affordable(self) -> bool:
        """True if inspection may go on: pipediag's own time is within its bound."""
        return self._spent + self.seconds <= max(ALLOWANCE, SHARE * self.busy)
