"""Define what a worker sends: a batch, and how it was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from ...clock import time
from ...measure.evidence import BatchCost
from ...session import Alternative, Inside

#: The cost of a batch that none of the ladder's workers has made.
NO_COST = BatchCost()


@dataclass
class Notes:
    """A worker's findings that accompany a batch.

    ``times`` are the seconds each sample took under the baseline, ``slowest`` the longest of them with its index.
    ``inside`` describes the dataset's code, sent when there is news; ``alternatives`` are cheaper ways for its
    transforms, once they were tried, with the number of the transform in its chain; ``ready`` is when the worker could
    begin (``time.perf_counter``, which all processes of a machine share), sent with its first batch.
    """

    times: list[float] = field(default_factory=list)
    slowest: tuple[float, str] | None = None
    inside: Inside | None = None
    alternatives: list[tuple[int, Alternative]] | None = None
    ready: float | None = None


@dataclass(slots=True, eq=False)
class Delivery:
    """A batch tagged with the rung it was made under.

    The tag makes a switch exact: the main process sees which batches still belong to the previous rung, however many
    are queued. ``stable`` is False if the worker was filling a cache or the rung changed during the batch. ``why_not``
    says why the rung cannot be served. ``made`` is when the worker finished the batch (``time.perf_counter``).
    """

    batch: Any
    rung: str
    stable: bool
    cost: BatchCost
    worker: int
    why_not: str = ""
    notes: Notes | None = None
    made: float = field(default_factory=time.perf_counter)

    def fits(self, rung: str) -> bool:
        """Return whether the batch was made under ``rung`` from beginning to end."""
        return self.stable and self.rung == rung

    def pin_memory(self) -> Delivery:
        """Pin the batch; called by the loader's pinning thread."""
        self.batch = pin_memory(self.batch)
        return self
