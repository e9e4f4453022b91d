"""A simulated training loop and its workers, on a clock that moves only with batches, steps and waiting."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from pipediag.ladder.findings import Findings
from pipediag.ladder.loop_side import END, LoopSide
from pipediag.ladder.loop_side import Loop as TrainingLoop
from pipediag.ladder.other_loaders import Spent
from pipediag.ladder.ranks.lockstep import Lockstep
from pipediag.ladder.steering import Epochs, Steering
from pipediag.ladder.windows import Windows
from pipediag.ladder.workers.delivery import Delivery
from pipediag.ladder.workers.rung_switch import PAUSE, RungSwitch
from pipediag.measure.account import Times
from pipediag.measure.evidence import BatchCost
from pipediag.measure.schedule import Schedule
from pipediag.measure.stops import Stops
from pipediag.session import FEWER_THREADS, REMEDIED, Session, Startup, Window, settings_rung

from ..clock import Clock

#: The rung of a clone of the loader with other settings.
CLONED = settings_rung(1)
#: Seconds that a worker takes for a batch.
COSTS = {"baseline": 1.0, "sample": 1 / 16, "worker": 1 / 16, REMEDIED: 1 / 16, CLONED: 1 / 16}
#: Seconds between two polls of the workers, and seconds without a batch after which they count as idle.
POLL, STILL = 1 / 64, 1 / 8
#: Seconds of waiting after the last batch was finished: the poll before saw it under way.
QUIET = STILL - POLL

#: The rung that workers serve, if they are not paused, while the loop is fed in another way.
_WORKERS_DO = dict.fromkeys(("device", "host", "supply", FEWER_THREADS, REMEDIED, CLONED), "baseline")


class Workers:
    """A loader's workers: each makes one batch after another, under the rung that it reads when it begins.

    Paused workers begin no batch until the pause is over. Workers of the remedied loader can be neither seen nor
    paused, as in production.
    """

    def __init__(self, clock: Clock, workers: int = 2, prefetch: int = 4, own: str = "", startup: float = 0.0) -> None:
        self.clock = clock
        self.workers = workers
        self.backlog = workers * prefetch
        self.startup = startup
        self.why_not = ""
        self.stubborn = False
        self.loader = SimpleNamespace(num_workers=workers, persistent_workers=True)
        self.rung_switch = RungSwitch()
        self.rung_switch.set = self._switch  # type: ignore[method-assign]
        self.findings = Findings()
        self.findings.startups = [Startup(0.0)] * 3
        self.worker_pids: list[int] = []
        self.waited = self.stalled = self.late = self.sampling = 0.0
        self.stops = Stops(clock)
        self.taken = self.launches = 0
        self._own = own
        self._switches = [(0.0, own or "baseline")]
        self._pauses: list[tuple[float, float]] = []
        self.open()

    def open(self) -> None:
        """Start new workers, which are not paused, and request as many batches as the queues hold."""
        self._resume()
        self.launches += 1
        begins = self.clock.now() + self.startup
        self._free = [begins] * self.workers
        self._asked = [begins] * self.backlog  # when each batch was requested
        self._made: list[tuple[float, str, bool]] = []
        self._next = 0

    def renew(self) -> None:
        self.open()

    def pause(self) -> None:
        now = self.clock.now()
        since, until = self._pauses.pop() if self._pauses else (now, now)
        if until <= now:
            self._pauses.append((since, until))
            since = now
        self._pauses.append((since, now + PAUSE))

    def _resume(self) -> None:
        now = self.clock.now()
        self._pauses = [(since, min(until, now)) for since, until in self._pauses]

    def _switch(self, rung: str) -> None:
        RungSwitch.set(self.rung_switch, rung)
        self._switches.append((self.clock.now(), _WORKERS_DO.get(rung, rung)))

    def _rung_at(self, moment: float) -> str:
        return [rung for since, rung in self._switches if since <= moment][-1]

    def _not_paused(self, moment: float) -> float:
        """Return the first time from ``moment`` on at which a batch may be begun."""
        for since, until in self._pauses:
            if since <= moment < until and self._own != REMEDIED:
                moment = until
        return moment

    def _work(self, until: int | None = None) -> None:
        """Make all batches that have begun by now, or those up to number ``until``."""
        while len(self._made) < len(self._asked):
            number = len(self._made)
            worker = number % self.workers
            begun = self._not_paused(max(self._free[worker], self._asked[number]))
            if begun > self.clock.now() if until is None else number > until:
                return
            rung = self._own or ("baseline" if self.stubborn else self._rung_at(begun))
            self._free[worker] = made = begun + COSTS[rung]
            self._made.append((made, rung, bool(self._own) or self._rung_at(made) == rung))

    def take(self) -> Delivery:
        self._resume()
        number, self._next, self.taken = self._next, self._next + 1, self.taken + 1
        self._work(number)
        made, rung, stable = self._made[number]
        self.clock.seconds = max(self.clock.seconds, made)
        self._asked.append(self.clock.now())
        cost = BatchCost(wall=COSTS[rung])
        return Delivery(torch.zeros(1), rung, stable, cost, number % self.workers, self.why_not, made=made)

    @property
    def begun(self) -> int:
        """Number of batches begun so far."""
        self._work()
        return len(self._made)

    @property
    def ready(self) -> int:
        self._work()
        return sum(made <= self.clock.now() for made, *_ in self._made[self._next :]) if self._own != REMEDIED else 0

    @property
    def at_work(self) -> int:
        self._work()
        return sum(made > self.clock.now() for made, *_ in self._made) if self._own != REMEDIED else 0


def steering(clock: Clock, length: int | None = None) -> Steering:
    """Return the steering of a loop whose epochs have ``length`` batches, and which measures no rung."""
    return Steering(clock, 100.0, Epochs(length), Schedule([], Session(), lambda session: []))


class Cache:
    writes_in_place = False

    def next(self) -> torch.Tensor:
        return torch.zeros(1)


class Loop:
    """A training loop over these workers: ``step`` seconds for a step, and a minute between two epochs."""

    def __init__(
        self,
        step: float = 1 / 8,
        length: int | None = 100_000,
        horizon: int | None = None,
        leaves: int | None = None,
        target: float = 1.0,
        budget: float = 80.0,
        earlier: Sequence[Window] = (),
        lockstep: Lockstep | None = None,
        **workers: Any,
    ) -> None:
        self.clock = Clock()
        self.feed = Workers(self.clock, **workers)
        self.step = step
        self.length = length
        self.leaves = leaves
        self.evaluates: set[int] = set()  # epochs without training
        self.validates: set[int] = set()  # steps after which a batch is drawn from another loader
        self.stands_still: dict[int, float] = {}  # seconds by step: the process is stopped
        self.ends: dict[int, BaseException] = {}  # by step, what ends the measuring after it
        self.validates_between = False  # whether one is drawn between the epochs
        self.draws = 0
        self.others = SimpleNamespace(spent=Spent(0.0, Times(0.0, 0.0)), beside=0.0)
        self.starts_others: dict[int, float] = {}  # seconds by step: another loader is started after it
        self.timed: list[bool] = []  # for each step, whether the workers were not to be disturbed
        self.threads: list[int] = []  # torch's, for each step
        self.is_drawn_ahead = False  # by a thread of the script
        self.training = SimpleNamespace(
            steps=0, backwards=0, drew=lambda ordinal: None, drawn_ahead=lambda ordinal: self.is_drawn_ahead
        )
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.epochs = Epochs(length, 0, horizon)
        self.session = Session(windows=[*earlier])
        self.schedule = Schedule(
            ["baseline", "sample", "device", "host", "supply", FEWER_THREADS, REMEDIED, CLONED],
            self.session,
            lambda session: [],
        )
        setting = SimpleNamespace(
            plan=SimpleNamespace(inference=False, budget=budget, attempt=1),
            session=self.session,
            schedule=self.schedule,
            training=self.training,
            clock=self.clock,
            send=lambda kind, data: self.events.append((kind, dict(data))),
            draws_of_others=lambda ordinal: self.draws,
            others=self.others,
        )
        training_loop = TrainingLoop(self.feed, 1, setting, torch.device("cpu"), 0, False)  # type: ignore[arg-type]
        self.steering = Steering(self.clock, budget, self.epochs, self.schedule)
        self.loop_side = LoopSide(training_loop, self.steering, lockstep or Lockstep())
        self.loop_side.caches = SimpleNamespace(device=Cache(), host=Cache(), shared=[])  # type: ignore[assignment]
        self.windows = Windows(self.loop_side, lambda rung: None)
        self.steering.target = target

    def drive(self, measuring: Generator[Any, None, str]) -> tuple[str, int, int, float]:
        """Train until ``measuring`` ends; return its result, and the steps, batches taken and seconds that it took."""
        steps, taken, began = 0, self.feed.taken, self.clock.now()
        while True:
            try:
                end_ = self.ends.get(self.training.steps)
                turn = measuring.throw(end_) if end_ is not None else next(measuring)
            except StopIteration as end:
                return end.value, steps, self.feed.taken - taken, self.clock.now() - began
            if turn is END:
                self.clock.seconds += 60.0
                self.draws += self.validates_between
                self.epochs.begin(self.length)
                continue
            steps += 1
            self.timed.append(self.feed.rung_switch.timing)
            self.threads.append(torch.get_num_threads())
            self.clock.seconds += self.step
            self.training.steps += self.epochs.serial not in self.evaluates
            self.clock.seconds += self.stands_still.get(self.training.steps, 0.0)
            starts = self.starts_others.get(self.training.steps, 0.0)
            self.clock.seconds += starts
            self.others.spent = self.others.spent.plus(starts, Times(starts / 2, starts / 4))
            self.draws += self.training.steps in self.validates
            if self.leaves is not None and self.epochs.handed == self.leaves:
                self.clock.seconds += 60.0
                self.epochs.begin(self.length)

    def rest(self) -> None:
        """Wait until the workers have made all requested batches."""
        self.clock.seconds += 60.0

    def settle(self, rung: str) -> tuple[str, int, int, float]:
        return self.drive(self.windows.settler.settle(rung))

    def measure(self, rung: str) -> tuple[str, int, int, float]:
        return self.drive(self.windows.measure(rung))

    @property
    def recorded(self) -> list[dict[str, Any]]:
        return [data for kind, data in self.events if kind == "window"]


def prepared(options: dict[str, Any], before: Sequence[float | str]) -> Loop:
    """Return a loop that has waited, rested, been timed (``window``) and settled as ``before`` says."""
    loop = Loop(**options)
    for one in before:
        if isinstance(one, float):
            loop.clock.seconds += one
        elif one == "rest":
            loop.rest()
        elif one.startswith("window "):
            loop.measure(one.removeprefix("window "))
        else:
            loop.settle(one)
    return loop


def beside(loop: Loop, rung: str, prefetch: int = 2) -> Workers:
    """Serve the batches of ``rung`` from other workers."""
    loop.loop_side.serve(rung, other := Workers(loop.clock, prefetch=prefetch, own=rung))  # type: ignore[arg-type]
    return other
