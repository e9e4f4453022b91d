"""What a worker sends: the batch, and how it came about."""

from __future__ import annotations

from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory


class Delivery:
    """A batch tagged with the rung it was made under.

    The tag makes a switch exact: the main process sees which batches are still of the rung before, however many
    the queues hold. ``stable`` is false while the worker was filling a cache or the rung changed meanwhile.
    ``cost`` is (wall, cpu, queued, copy) in seconds. ``why_not`` says why the rung cannot be served.
    """

    __slots__ = ("batch", "cost", "rung", "stable", "why_not", "worker")

    def __init__(
        self,
        batch: Any,
        rung: str,
        stable: bool,
        cost: tuple[float, float, float, float],
        worker: int,
        why_not: str = "",
    ) -> None:
        self.batch = batch
        self.rung = rung
        self.stable = stable
        self.cost = cost
        self.worker = worker
        self.why_not = why_not

    def fits(self, rung: str) -> bool:
        """Whether the batch was made under ``rung`` from beginning to end."""
        return self.stable and self.rung == rung

    def __reduce__(self) -> tuple[Any, ...]:
        return (Delivery, (self.batch, self.rung, self.stable, self.cost, self.worker, self.why_not))

    def pin_memory(self) -> Delivery:
        """Called by the loader's pinning thread, which pins what knows how to pin itself."""
        self.batch = pin_memory(self.batch)
        return self
