"""How far the training loop is in its epoch, and how far it usually goes."""

from __future__ import annotations


class Epochs:
    """Counts the batches the loop was handed, epoch by epoch.

    ``length`` is what ``len(loader)`` says, None where it does not know. ``horizon`` is how many batches the loop
    draws before it leaves an epoch early, where it was seen to do so: its last step's end cannot be seen.
    """

    def __init__(self, length: int | None, handed: int = 0, horizon: int | None = None) -> None:
        self.length = length
        self.handed = handed
        self.serial = 0
        self.horizon = horizon
        self._ended = False

    def begin(self, length: int | None) -> None:
        """The loop has called ``iter()``: a new epoch, and where the last one was left tells how far the loop goes."""
        self.horizon = self.seen_horizon
        self.length = length
        self.serial += 1
        self.handed = 0
        self._ended = False

    def end(self) -> None:
        """The loop was told that its epoch is over: it did not leave early.

        The next epoch of a loader without length may well be shorter, so a window should be closed before the end.
        """
        self._ended = True
        if self.length is None:
            self.horizon = max(2, 4 * self.handed // 5)

    def hand(self) -> None:
        """Count one more batch. A loop that goes beyond its horizon has none any more."""
        self.handed += 1
        if self.horizon is not None and self.handed > self.horizon:
            self.horizon = None

    @property
    def complete(self) -> bool:
        """Whether the epoch has had all its batches, and the loop is to be told so."""
        return self.length is not None and self.handed >= self.length

    @property
    def last_chance(self) -> bool:
        """Whether the loop's present call of ``next()`` is the last one of this epoch that will be seen."""
        at_horizon = self.horizon is not None and max(1, self.horizon - 1) <= self.handed <= self.horizon
        return self.complete or at_horizon

    @property
    def seen_horizon(self) -> int | None:
        """The horizon as it would be if the loop left now."""
        if self.handed == 0 or self.complete or self._ended:
            return self.horizon
        return max(self.horizon or 0, self.handed)
