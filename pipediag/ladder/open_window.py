"""Time a window: its stopwatch, and the evidence gathered during it."""

from __future__ import annotations

from ..measure.evidence import BatchCost, Evidence, Gpu, worker_figures
from ..measure.steps import StepClock
from ..measure.window import FEW_STEPS, MIN_STEPS, SLOW, Stopwatch
from ..session import CACHED, Stretch, Window
from .delivery import Delivery
from .loop_side import LoopSide
from .step_recorder import StepRecorder


class OpenWindow:
    """A window of ``rung`` that is being timed: one or more stretches of the loop, each with its end seen.

    Attributes:
        wanted: target number of steps.
        longest: maximum length in seconds.
        interrupted: True if batches of other loaders were drawn during it.
    """

    def __init__(self, rung: str, wanted: int, longest: float, loop_side: LoopSide, gpu: Gpu | None) -> None:
        setting, source = loop_side.setting, loop_side.source(rung)
        self.rung = rung
        self.wanted = wanted
        self.longest = longest
        self.interrupted = False
        self._clock = loop_side.clock
        self._device = loop_side.device
        self._loop_side = loop_side
        self._training = setting.training
        self._trained = setting.training.steps
        self._attempt = setting.plan.attempt
        self._watch = Stopwatch(self._clock, self._device.synchronize)
        self._steps = StepClock(self._clock, self._device)
        self._recorder = StepRecorder.within(setting.session, rung, setting.plan.attempt)
        self._queue = None if rung in CACHED else source
        self._costs: list[BatchCost] = []
        self._spans: list[tuple[float, float]] = []  # seconds, and seconds waited, of each step
        self._source = source
        self._lay_ready = self._stock = 0
        self._waited, self._stalled = source.waited, source.stalled
        self._evidence = Evidence(source.worker_pids, gpu)

    # One stretch

    def start(self) -> None:
        """Begin a stretch: the loop has just asked for a batch."""
        self._watch.start()
        self._lay_ready = self._source.ready
        self._recorder.asks(self._steps.asks(), self._queue)

    def takes(self, delivery: Delivery) -> None:
        """Note a batch of the workers: the next one that the loop gets."""
        self._costs.append(delivery.cost)
        self._recorder.took(delivery)

    def gets(self) -> None:
        """Note that the loop is about to get the batch it asked for."""
        self._recorder.gets(self._steps.gets())

    def count(self) -> None:
        """Count a step: the loop has completed it and asks for the next batch."""
        self._watch.count()
        self._recorder.asks(self._steps.asks(), self._queue)

    def stop(self) -> None:
        """End the stretch and keep it."""
        self._watch.stop()
        self._recorder.ends(self._clock.now())
        self._stock += self._source.ready - self._lay_ready
        self._spans += self._steps.take()
        self._steps.breaks()

    def drop(self) -> None:
        """Discard the stretch: its end was not seen."""
        self._watch.drop()
        self._recorder.drop()
        self._steps = StepClock(self._clock, self._device)

    # The whole window

    @property
    def steps(self) -> int:
        """Number of steps so far, including the open stretch."""
        return self._watch.total_steps

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer steps since the window was opened."""
        return self._training.steps - self._trained

    @property
    def running(self) -> bool:
        """True if a stretch is open."""
        return self._watch.running

    @property
    def full(self) -> bool:
        return self.steps >= self.wanted

    @property
    def seconds(self) -> float:
        """Seconds of the stretches that were kept."""
        return self._watch.seconds

    @property
    def used_up_stock(self) -> bool:
        """True if the queues shrank because the workers make batches more slowly than the loop takes them."""
        if self._stock >= 0 or not self._costs or not self._source.workers:
            return False
        made = sum(cost.wall for cost in self._costs) / len(self._costs) / self._source.workers
        return made * self.steps > self.seconds

    @property
    def worth_keeping(self) -> bool:
        """True if the kept stretches suffice for a window although the loop has ended."""
        steps, seconds = self._watch.steps, self._watch.seconds
        return steps >= (FEW_STEPS if seconds > SLOW * steps else MIN_STEPS)

    def shorten(self) -> None:
        """End the window at its current number of steps, if it has enough."""
        if self.steps >= MIN_STEPS:
            self.wanted = self.steps

    def evidence(self) -> dict[str, float]:
        """Return the figures so far."""
        steps = self._watch.steps
        figures = {**self._evidence.finish(steps), **worker_figures(self._costs)}
        if self.rung in (*CACHED, "supply") or self._loop_side.drawn_ahead:  # the loop does not wait for the workers
            return figures
        if self._spans:
            figures["wait_ms"] = round(1000 * sum(waited for _, waited in self._spans) / len(self._spans), 4)
        if steps:
            figures["stock"] = float(self._stock)
            figures["next_ms"] = round(1000 * (self._source.waited - self._waited) / steps, 4)
            figures["stalled_ms"] = round(1000 * (self._source.stalled - self._stalled) / steps, 4)
        return figures

    def stretches(self, round_: int) -> list[Stretch]:
        """Return the recorded steps as those of this round, once."""
        return [] if self._loop_side.drawn_ahead else self._recorder.take(round_)

    def closed(self, round_: int, evidence: dict[str, float]) -> Window:
        """Return the window as it is recorded."""
        return Window(
            rung=self.rung,
            round=round_,
            steps=self._watch.steps,
            seconds=self._watch.seconds,
            optimizer_steps=self.optimizer_steps,
            attempt=self._attempt,
            evidence=evidence,
        )
