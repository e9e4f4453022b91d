"""Time a window: its stopwatch, and the evidence gathered during it."""

from __future__ import annotations

from typing import NamedTuple

from ..measure.account import StepAccount
from ..measure.evidence import BatchCost, Evidence, worker_figures
from ..measure.machine import Gpu
from ..measure.rare_steps import rare_steps
from ..measure.stops import Stop
from ..measure.window import FEW_STEPS, MIN_STEPS, SLOW, StepClock, Stopwatch
from ..session import CACHED, Account, Stretch, Window
from .loop_side import LoopSide
from .single_steps import StepRecorder
from .workers.delivery import Delivery

#: A step is a pause if it takes at least these seconds and this many times a usual step, and if the thread was hardly
#: on a CPU: the process was stopped, or it slept. A wait for a core proves nothing: Linux may take a stop for that.
#: A wait for a batch is no pause: it is the data's, if it is not a stop that was noticed.
_PAUSE, _UNUSUAL, _IDLE = 1.0, 20.0, 0.8
#: Number of other steps that show what is usual.
_USUAL = 3


class _LongStep(NamedTuple):
    """The longest step so far: its place, its end, its seconds, and those of them in ``next()`` or on a CPU."""

    at: int
    ended: float
    seconds: float
    busy: float


class OpenWindow:
    """A window of ``rung`` that is being timed: one or more stretches of the loop, each with its end seen.

    Attributes:
        wanted: target number of steps.
        longest: maximum length in seconds.
        interrupted: True if batches of other loaders were drawn during it.
        left_out: seconds of a pause that are left out.
        stopped: seconds that are left out as the process was stopped while the loop waited for a batch.
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
        self._stepped, self._went_back = setting.training.steps, setting.training.backwards
        self._attempt = setting.plan.attempt
        self._watch = Stopwatch(self._clock, self._device.synchronize)
        self._steps = StepClock(self._clock, self._device)
        self._account = StepAccount(self._clock, loop_side.counters, loop_side.in_next)
        self._asked = self._got = 0.0  # by the clock
        self._longest: _LongStep | None = None
        self.left_out = 0.0
        self.stopped = self._stopped_before = 0.0  # in all stretches, and before the open one
        self._stops_seen = source.stops.seen
        self._others, self._on_others = setting.others, setting.others.spent
        self._beside, self._beside_before = 0.0, 0.0  # seconds of the stretches, and before the open one
        self._recorder = StepRecorder.within(setting.session, rung, setting.plan.attempt)
        self._queue = None if rung in CACHED else source
        self._made: list[tuple[BatchCost, float]] = []  # what each batch took, and when it was made
        self._spans: list[tuple[float, float]] = []  # seconds, and seconds waited, of each step
        self._elsewhere: list[float] = []  # seconds of each step in which other code ran, or nothing
        self._elsewhere_now: list[float] = []  # the same of the open stretch
        self._source = source
        self._lay_ready = self._stock = 0
        self._waited, self._stalled, self._late = source.waited, source.stalled, source.late
        self._sampling = source.sampling
        self._evidence = Evidence(source.worker_pids, gpu)

    # One stretch

    def start(self) -> None:
        """Begin a stretch: the loop has just asked for a batch."""
        self._account.start()
        self._watch.start()
        self._lay_ready = self._source.ready
        self._elsewhere_now = []
        self._on_others, self._beside_before = self._others.spent, self._others.beside
        self._stopped_before, self._stops_seen = self.stopped, self._source.stops.seen
        self._asked = self._steps.asks()
        self._recorder.asks(self._asked, self._queue)

    def takes(self, delivery: Delivery) -> None:
        """Note a batch of the workers: the next one that the loop gets."""
        self._made.append((delivery.cost, delivery.made))
        self._recorder.took(delivery)

    def gets(self) -> None:
        """Note that the loop is about to get the batch it asked for."""
        self._got = self._steps.gets()
        self._recorder.gets(self._got)

    def count(self) -> None:
        """Count a step: the loop has completed it and asks for the next batch."""
        asked, self._asked = self._asked, self._steps.asks()
        self._recorder.asks(self._asked, self._queue)
        on_others, self._on_others = self._others.spent.since(self._on_others), self._others.spent
        seen, self._stops_seen = self._stops_seen, self._source.stops.seen
        stopped = self._stops_seen - seen
        self.stopped += stopped
        if apart := on_others.seconds + stopped:
            self._watch.leave_out(apart)
        spent = self._account.count(on_others.seconds, on_others.worked)
        self._elsewhere_now.append(apart)
        step = self._asked - asked - apart
        if step >= _PAUSE and (self._longest is None or step > self._longest.seconds):
            at, in_next = len(self._elsewhere) + len(self._elsewhere_now) - 1, self._got - asked - stopped
            self._longest = _LongStep(at, self._asked, step, in_next + spent.cpu)
        if self._longest is not None and not self.left_out:
            self._cut_out_pause(self._longest)
        self._watch.count()

    def _cut_out_pause(self, long: _LongStep) -> None:
        """Cut what a step took longer than usual out of the window, once, if it was a pause."""
        others = self._watch.total_steps  # the step that ends now is not counted yet, and the long one is left out
        if others < _USUAL or self._loop_side.counters.here() is None:  # without counters, work looks like a pause
            return
        usual = (self._watch.seconds + self._watch.elapsed - long.seconds) / others
        if long.seconds < _UNUSUAL * usual or long.busy > (1 - _IDLE) * long.seconds:
            return
        self.left_out = long.seconds - usual
        self._watch.leave_out(self.left_out)
        self._source.stops.add(Stop(long.ended - self.left_out, long.ended))

    def stop(self) -> None:
        """End the stretch and keep it."""
        self._watch.stop()
        self._account.stop()
        self._recorder.ends(self._clock.now())
        self._stock += self._source.ready - self._lay_ready
        self._beside += self._others.beside - self._beside_before
        self._spans += self._steps.take()
        self._elsewhere += self._elsewhere_now
        self._steps.breaks()

    def drop(self) -> None:
        """Discard the stretch: its end was not seen."""
        if self._longest is not None and self._longest.at >= len(self._elsewhere):
            self._longest, self.left_out = None, 0.0
        self.stopped = self._stopped_before
        self._watch.drop()
        self._account.drop()
        self._recorder.drop()
        self._steps = StepClock(self._clock, self._device)

    # The whole window

    @property
    def steps(self) -> int:
        return self._watch.total_steps

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer steps since the window was opened, or if there are none, of backward passes."""
        return self._training.steps - self._stepped or self._training.backwards - self._went_back

    @property
    def running(self) -> bool:
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
        if self._stock >= 0 or not self._made or not self._source.workers:
            return False
        made = sum(cost.wall for cost in self._costs) / len(self._made) / self._source.workers
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
        steps = self._watch.steps
        figures = {**self._evidence.finish(steps), **worker_figures(self._costs)}
        apart = [sum(pair) for pair in zip(self._elsewhere, self._account.queued(), strict=True)]
        if self._longest is not None and self._longest.at < len(apart):
            apart[self._longest.at] += self.left_out
        figures |= rare_steps(self._spans, apart, self._source.workers, self._source.backlog)
        if self.rung in (*CACHED, "supply") or self._loop_side.drawn_ahead:  # the loop does not wait for the workers
            return figures
        if self._spans:
            waited = sum(waited for _, waited in self._spans) - self.stopped
            figures["wait_ms"] = round(1000 * max(0.0, waited) / len(self._spans), 4)
        if steps:
            figures["stock"] = float(self._stock)
            figures["next_ms"] = round(1000 * max(0.0, self._source.waited - self._waited - self.stopped) / steps, 4)
            figures["late_ms"] = round(1000 * max(0.0, self._source.late - self._late - self.stopped) / steps, 4)
            figures["stalled_ms"] = round(1000 * (self._source.stalled - self._stalled) / steps, 4)
            figures["beside_ms"] = round(1000 * self._beside / steps, 4)
            figures["sampler_ms"] = round(1000 * (self._source.sampling - self._sampling) / steps, 4)
        return figures

    @property
    def _costs(self) -> list[BatchCost]:
        """What each batch took, without the time at which the process stood still."""
        within = self._source.stops.within
        return [cost._replace(wall=cost.wall - within(made - cost.wall, made)) for cost, made in self._made]

    def account(self) -> Account | None:
        """Return the account of the steps so far, if the loop draws its batches itself."""
        if self.rung == "supply" or self._loop_side.drawn_ahead:
            return None
        found = self._account.figures(self._watch.steps, self._watch.seconds, self.stopped)
        if found is not None:
            found.left_out_s, found.stopped_s = round(self.left_out, 4), round(self.stopped, 4)
        return found

    def stretches(self, round_: int) -> list[Stretch]:
        """Return the recorded steps as those of this round, once."""
        return [] if self._loop_side.drawn_ahead else self._recorder.take(round_)

    def closed(self, round_: int, evidence: dict[str, float]) -> Window:
        return Window(
            rung=self.rung,
            round=round_,
            steps=self._watch.steps,
            seconds=self._watch.seconds,
            optimizer_steps=self.optimizer_steps,
            attempt=self._attempt,
            evidence=evidence,
            account=self.account(),
        )
