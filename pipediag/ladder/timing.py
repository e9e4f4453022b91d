"""A window while it is being timed: its stopwatch, and what is seen beside the clock."""

from __future__ import annotations

from ..measure.clock import Clock
from ..measure.device import Device
from ..measure.evidence import Evidence, Gpu, worker_figures
from ..measure.window import MIN_STEPS, Stopwatch
from ..session import Window
from .feed import Source

#: Of one batch in a worker, in seconds: wall, on a CPU, waiting for a core, copying cached items.
Cost = tuple[float, float, float, float]


class OpenWindow:
    """A window of ``rung``, from the moment it is made.

    ``wanted`` is how many batches it is to have, ``longest`` how many seconds it may take; ``optimizer_steps`` and
    ``draws_of_others`` are how far those counters stood.
    """

    def __init__(
        self,
        rung: str,
        wanted: int,
        longest: float,
        source: Source,
        clock: Clock,
        device: Device,
        gpu: Gpu | None,
        optimizer_steps: int = 0,
        draws_of_others: int = 0,
    ) -> None:
        self.rung = rung
        self.wanted = wanted
        self.longest = longest
        self.watch = Stopwatch(clock, device.synchronize)
        self.costs: list[Cost] = []
        self.optimizer_steps = optimizer_steps
        self.draws_of_others = draws_of_others
        self._source = source
        self._waited, self._stalled = source.waited, source.stalled
        self._evidence = Evidence(source.worker_pids, gpu)

    @property
    def full(self) -> bool:
        return self.watch.total_steps >= self.wanted

    def shorten(self) -> None:
        """Be content with the batches there are, if these are enough for a window."""
        if self.watch.total_steps >= MIN_STEPS:
            self.wanted = self.watch.total_steps

    def evidence(self, waits: bool) -> dict[str, float]:
        """The figures from the beginning up to now; ``waits`` says that the loop waited for the workers' batches."""
        steps = self.watch.steps
        figures = {**self._evidence.finish(steps), **worker_figures(self.costs)}
        if waits and steps:
            figures["wait_ms"] = round(1000 * (self._source.waited - self._waited) / steps, 4)
            figures["stalled_ms"] = round(1000 * (self._source.stalled - self._stalled) / steps, 4)
        return figures

    def closed(self, round_: int, attempt: int, optimizer_steps: int, evidence: dict[str, float]) -> Window:
        """The window as it is recorded."""
        return Window(
            rung=self.rung,
            round=round_,
            steps=self.watch.steps,
            seconds=self.watch.seconds,
            optimizer_steps=optimizer_steps,
            attempt=attempt,
            evidence=evidence,
        )
