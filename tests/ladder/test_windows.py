"""Settling and timing on a clock that moves only with batches, steps and waiting: each step and second is exact."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipediag.ladder import settling, switching
from pipediag.ladder.deadline import Deadline
from pipediag.ladder.delivery import Delivery
from pipediag.ladder.findings import Findings
from pipediag.ladder.lockstep import Lockstep
from pipediag.ladder.loop_side import END, LoopSide
from pipediag.ladder.loop_side import Loop as TrainingLoop
from pipediag.ladder.rung_switch import PAUSE
from pipediag.ladder.windows import OTHER_LOADERS, Windows
from pipediag.loop.epochs import Epochs
from pipediag.measure.evidence import BatchCost
from pipediag.measure.schedule import Schedule
from pipediag.session import REMEDIED, Session, Startup, Window, settings_rung

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
_WORKERS_DO = dict.fromkeys(("device", "host", "supply", REMEDIED, CLONED), "baseline")


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
        self.rung_switch = SimpleNamespace(set=self._switch, pool_bytes=0)
        self.findings = Findings()
        self.findings.startups = [Startup(0.0)] * 3
        self.worker_pids: list[int] = []
        self.waited = self.stalled = 0.0
        self.taken = 0
        self._own = own
        self._switches = [(0.0, own or "baseline")]
        self._pauses: list[tuple[float, float]] = []
        self.open()

    def open(self) -> None:
        """Start new workers, which are not paused, and request as many batches as the queues hold."""
        self._resume()
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
        **workers: Any,
    ) -> None:
        self.clock = Clock()
        self.feed = Workers(self.clock, **workers)
        self.step = step
        self.length = length
        self.leaves = leaves
        self.evaluates: set[int] = set()  # epochs without training
        self.validates: set[int] = set()  # steps after which a batch is drawn from another loader
        self.validates_between = False  # whether one is drawn between the epochs
        self.draws = 0
        self.training = SimpleNamespace(steps=0, drew=lambda ordinal: None)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.epochs = Epochs(length, 0, horizon)
        self.session = Session(windows=[*earlier])
        self.schedule = Schedule(
            ["baseline", "sample", "device", "host", "supply", REMEDIED, CLONED], self.session, lambda session: []
        )
        setting = SimpleNamespace(
            plan=SimpleNamespace(inference=False, budget=budget, attempt=1),
            session=self.session,
            schedule=self.schedule,
            training=self.training,
            clock=self.clock,
            send=lambda kind, data: self.events.append((kind, dict(data))),
            draws_of_others=lambda ordinal: self.draws,
        )
        training_loop = TrainingLoop(self.feed, 1, setting, torch.device("cpu"), 0, False)  # type: ignore[arg-type]
        self.deadline = Deadline(self.clock, math.inf)
        self.loop_side = LoopSide(training_loop, self.epochs, self.deadline, Lockstep())
        self.loop_side.caches = SimpleNamespace(device=Cache(), host=Cache(), shared=[])  # type: ignore[assignment]
        self.windows = Windows(self.loop_side, lambda rung: None)
        self.windows.target = target

    def drive(self, measuring: Generator[Any, None, str]) -> tuple[str, int, int, float]:
        """Train until ``measuring`` ends; return its result, and the steps, batches taken and seconds that it took."""
        steps, taken, began = 0, self.feed.taken, self.clock.now()
        while True:
            try:
                turn = next(measuring)
            except StopIteration as end:
                return end.value, steps, self.feed.taken - taken, self.clock.now() - began
            if turn is END:
                self.clock.seconds += 60.0
                self.draws += self.validates_between
                self.epochs.begin(self.length)
                continue
            steps += 1
            self.clock.seconds += self.step
            self.training.steps += self.epochs.serial not in self.evaluates
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


@pytest.fixture(autouse=True)
def no_first_seconds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle no longer under a new rung than under others, except in the tests of that."""
    if request.cls is not TestFirst:
        monkeypatch.setattr(settling, "_FIRST_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def exact_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll the workers at times whose sums are exact."""
    monkeypatch.setattr(switching, "_POLL", POLL)
    monkeypatch.setattr(switching, "_STILL", STILL)


class TestFirst:
    """One-time work makes the first steps under a rung slower."""

    def test_one_second_of_steps_before_the_first_window(self) -> None:
        loop = Loop()
        loop.rest()
        assert loop.settle("device") == ("", 8, 0, STILL + 8 / 8)
        loop.windows.switcher.disturb()
        assert loop.settle("device") == ("", 2, 0, STILL + 2 / 8), "only once"

    def test_less_with_a_small_budget(self) -> None:
        loop = Loop(budget=10.0)
        loop.rest()
        assert loop.settle("device") == ("", 4, 0, STILL + 4 / 8)

    def test_not_for_a_loop_that_leaves_early(self) -> None:
        loop = Loop(horizon=11)
        loop.rest()
        assert loop.settle("device") == ("", 2, 0, STILL + 2 / 8)


class TestSettling:
    def test_one_round_of_the_workers(self) -> None:
        """The loop waits 1 s for the first batch; the second is ready too, and the loop takes two steps."""
        assert Loop().settle("baseline") == ("", 2, 2, 1.0 + 2 / 8)

    def test_one_step_for_each_worker(self) -> None:
        assert Loop(workers=5).settle("baseline") == ("", 5, 5, 1.0 + 5 / 8)

    def test_two_steps_under_a_cached_rung(self) -> None:
        loop = Loop()
        loop.rest()
        assert loop.settle("device") == ("", 2, 0, STILL + 2 / 8)

    def test_batches_under_way_for_another_rung_are_dropped(self) -> None:
        """Two batches are under way; requests that were not begun are served under the new rung."""
        loop = Loop()
        loop.settle("baseline")
        trouble, steps, taken, _ = loop.settle("sample")
        assert (trouble, steps, taken) == ("", 2, 2 + 2)

    def test_queued_batches_are_dropped(self) -> None:
        """Eight batches of the baseline are queued; the ninth is requested when the first of them is taken."""
        loop = Loop()
        loop.settle("device")
        loop.rest()
        trouble, steps, taken, seconds = loop.settle("baseline")
        assert (trouble, steps, taken) == ("", 2, 8 + 2)
        assert seconds == 1.0 + 2 / 8, "the loop neither trains on queued batches nor waits for as many more"

    def test_a_loop_slower_than_its_workers_drops_queued_batches_too(self) -> None:
        loop = Loop(step=4.0)
        loop.settle("sample")
        assert loop.feed.ready == 8
        trouble, steps, taken, seconds = loop.settle("baseline")
        assert (trouble, steps, taken) == ("", 2, 8 + 2)
        assert seconds == 1.0 + 2 * 4.0

    def test_full_queues_end_settling(self) -> None:
        """If five workers keep up, two steps suffice."""
        loop = Loop(step=1.0, workers=5)
        assert loop.settle("sample")[:2] == ("", 2)
        assert loop.windows.switcher.keeps_up
        loop = Loop(step=1 / 128, workers=5)
        assert loop.settle("sample")[:2] == ("", 5)
        assert not loop.windows.switcher.keeps_up

    def test_one_queued_round_does_not_mean_that_workers_keep_up(self) -> None:
        """A round arrives all at once: in 2/16 s two workers make four batches, and the loop takes one of them."""
        loop = Loop(step=1 / 16)
        loop.rest()
        loop.settle("sample")
        assert loop.feed.ready == 4
        assert not loop.windows.switcher.keeps_up
        loop = Loop(step=1 / 8)
        loop.rest()
        loop.settle("sample")
        assert loop.feed.ready == loop.feed.backlog == 8
        assert loop.windows.switcher.keeps_up

    def test_nor_do_full_queues_if_workers_are_known_to_be_slower(self) -> None:
        """They were filled during two steps of 1 s; the known pace is 1/64 s per step."""
        loop = Loop(step=1.0)
        loop.windows.switcher.pace["device"] = 1 / 64
        loop.settle("sample")
        assert loop.feed.ready == loop.feed.backlog
        assert not loop.windows.switcher.keeps_up

    def test_a_settled_loop_is_not_settled_again(self) -> None:
        loop = Loop()
        loop.settle("baseline")
        assert loop.settle("baseline") == ("", 0, 0, 0.0)
        loop.windows.switcher.disturb()
        trouble, steps, taken, _ = loop.settle("baseline")
        assert (trouble, steps) == ("", 2) and taken >= 2

    def test_less_than_a_round_for_a_loop_that_leaves_early(self) -> None:
        assert Loop(workers=5, horizon=11).settle("baseline")[1] == 3

    def test_a_rung_that_cannot_be_served(self) -> None:
        """Two batches were under way for the previous rung; the third one says why. No more are taken."""
        loop = Loop()
        loop.settle("baseline")
        loop.feed.why_not = "it fails"
        assert loop.settle("sample")[:3] == ("it fails", 0, 3)
        assert [data["why_not"] for kind, data in loop.events if kind == "rung"] == ["it fails"]
        assert not loop.schedule.allows("sample")

    def test_workers_that_do_not_follow(self) -> None:
        loop = Loop()
        loop.feed.stubborn = True
        trouble, steps, taken, _ = loop.settle("sample")
        assert (trouble, steps, taken) == ("the workers did not follow the switch", 0, 200 + 4 * (8 + 2) + 1)


def beside(loop: Loop, rung: str, prefetch: int = 2) -> Workers:
    """Serve the batches of ``rung`` from other workers."""
    loop.loop_side.serve(rung, other := Workers(loop.clock, prefetch=prefetch, own=rung))  # type: ignore[arg-type]
    return other


class TestPausing:
    """Workers share the loop's cores: only those that feed it may make batches."""

    @pytest.mark.parametrize("rung", ["device", "host"])
    def test_no_batch_is_begun_under_a_cached_rung(self, rung: str) -> None:
        """Two batches are under way; six requests wait for longer than an unrenewed pause would last."""
        loop = Loop(target=3 * PAUSE)
        loop.clock.seconds = 0.5
        assert loop.feed.begun == 2
        assert loop.measure(rung)[:3] == ("", 2 + 240, 0)
        assert (loop.feed.begun, loop.feed.ready) == (2, 2)

    def test_batches_under_way_are_finished_first(self) -> None:
        """They need another 0.5 s, and no step is spent on them. Nobody waits for the queues to fill up."""
        loop = Loop()
        loop.clock.seconds = 0.5
        assert loop.settle("device") == ("", 2, 0, 0.5 + QUIET + 2 / 8)
        assert loop.feed.ready == 2 < loop.feed.backlog

    def test_but_the_wait_for_them_is_limited(self) -> None:
        """To a twentieth of 5 s."""
        loop = Loop(budget=5.0)
        loop.clock.seconds = 0.25
        assert loop.settle("device") == ("", 2, 0, 0.25 + 2 / 8)
        assert loop.feed.at_work == 2, "they are not finished yet"

    def test_no_wait_from_one_cached_rung_to_the_other(self) -> None:
        loop = Loop()
        loop.clock.seconds = 0.5
        loop.settle("device")
        assert loop.settle("host") == ("", 2, 0, 2 / 8)
        assert loop.feed.begun == 2

    def test_workers_resume_when_a_batch_is_taken(self) -> None:
        """Two queued batches are dropped. Old and new requests are served now."""
        loop = Loop()
        loop.clock.seconds = 0.5
        loop.settle("device")
        assert loop.settle("baseline") == ("", 2, 2 + 2, 1.0 + 2 / 8)

    @pytest.mark.parametrize("rung", [REMEDIED, CLONED])
    def test_own_workers_pause_while_another_loader_feeds_the_loop(self, rung: str) -> None:
        loop = Loop(target=3 * PAUSE)
        other = beside(loop, rung)
        loop.clock.seconds = 0.5
        assert loop.measure(rung)[0] == ""
        assert loop.recorded[-1]["seconds"] >= 3 * PAUSE
        assert loop.feed.begun == 2 < other.begun

    def test_another_loaders_workers_pause_while_its_own_feed_the_loop(self) -> None:
        """The loop waits for the clone's workers: they have begun two of the eight requested batches."""
        loop = Loop(step=1 / 64, target=3 * PAUSE)
        clone = beside(loop, CLONED, prefetch=4)
        loop.measure(CLONED)
        begun = clone.begun
        assert begun == clone.taken + 2
        loop.measure("baseline")
        assert (clone.begun, clone.ready) == (begun, 2)
        loop.settle(CLONED)
        assert clone.begun > begun, "they resume"

    def test_previous_workers_become_idle_before_the_clone_feeds_the_loop(self) -> None:
        """The loop gets two batches at every whole second, and has taken two steps when it switches to the clone.

        The workers need another 15/16 s for their batches; 1/16 s later the clone has made one since the switch.
        """
        loop = Loop(step=1 / 32)
        beside(loop, CLONED)
        loop.measure("baseline")
        assert loop.clock.now() % 1 == 2 / 32
        assert loop.settle(CLONED) == ("", 2, 0, 15 / 16 + QUIET + 1 / 16 + 2 / 32)

    def test_workers_that_cannot_be_seen_get_time_to_fill_their_queues(self) -> None:
        """The remedied loader makes eight batches, one every 1/32 s; then the baseline takes 1 s for one."""
        loop = Loop(step=1 / 32)
        beside(loop, REMEDIED, prefetch=4)
        loop.measure(REMEDIED)
        assert loop.windows.switcher.pace[REMEDIED] == 1 / 32
        ready = loop.feed.ready
        assert loop.settle("baseline") == ("", 2, ready + 2, 8 / 32 + 1.0 + 2 / 32)

    def test_waiting_takes_no_step_of_a_loop_that_leaves_early(self) -> None:
        loop = Loop(step=1 / 32, horizon=11)
        beside(loop, CLONED)
        loop.settle("baseline")
        assert loop.settle(CLONED) == ("", 2, 0, 15 / 16 + QUIET + 1 / 16 + 2 / 32)


class TestFilling:
    """In training, workers that outpace the loop have full queues; so a window begins with full queues."""

    def loop(self, **options: Any) -> Loop:
        """Return a loop whose pace, 1/8 s per step, is known from a cached rung, and whose queues are full."""
        loop = Loop(**options)
        loop.rest()
        loop.measure("device")
        assert loop.windows.switcher.pace["device"] == loop.step
        return loop

    def test_queues_are_full_before_the_window(self) -> None:
        """Eight batches of the baseline are dropped, the ninth comes after 1/16 s, and seven more are queued once each
        worker has made four. Filling takes no step; settling takes two, as under any rung."""
        loop = self.loop()
        assert loop.settle("sample") == ("", 2, 8 + 2, 4 / 16 + 2 / 8)
        assert loop.feed.ready == loop.feed.backlog == 8
        loop.measure("sample")
        assert loop.recorded[-1]["evidence"]["stock"] == loop.recorded[-1]["evidence"]["wait_ms"] == 0.0

    def test_not_if_the_loop_waits_for_the_workers(self) -> None:
        loop = self.loop()
        assert loop.settle("baseline") == ("", 2, 8 + 2, 1.0 + 2 / 8)
        assert loop.feed.ready == 0

    def test_not_if_workers_are_hardly_faster(self) -> None:
        """Two workers make a batch every 1/32 s; a step takes 1/1024 s longer."""
        loop = self.loop(step=33 / 1024)
        assert loop.settle("sample") == ("", 2, 8 + 2, 1 / 16 + 2 * 33 / 1024)

    def test_not_if_the_loops_own_pace_is_unknown(self) -> None:
        loop = Loop()
        loop.rest()
        assert loop.settle("sample") == ("", 2, 8 + 2, 1 / 16 + 2 / 8)

    def test_the_wait_for_full_queues_is_limited(self) -> None:
        """To a twentieth of 5/8 s. Then the loop takes steps until the queues are full: two."""
        loop = self.loop(budget=5 / 8, workers=5)
        trouble, steps, _, seconds = loop.settle("sample")
        assert (trouble, steps) == ("", 2)
        assert seconds == 1 / 16 + 1 / 32 + 2 / 8

    def test_queues_that_were_not_filled_in_time_do_not_count_as_full(self) -> None:
        """In 3/16 s the workers make six batches, and the loop takes two."""
        loop = self.loop(budget=5 / 8, step=3 / 64)
        assert loop.settle("sample") == ("", 2, 8 + 2, 1 / 16 + 1 / 32 + 2 * 3 / 64)
        assert loop.feed.ready == 4
        assert not loop.windows.switcher.keeps_up

    def test_a_window_fed_from_full_queues_is_measured_again(self) -> None:
        """One slow step on a cached batch made the workers look fast enough.

        Eight queued batches suffice for a window at 8 steps/s, although two workers make two batches per second.
        """
        loop = self.loop()
        loop.windows.switcher.pace["device"] = 4.0
        loop.measure("baseline")
        assert len(loop.recorded) == 2, "the first one was the cached rung's"
        assert loop.recorded[-1]["seconds"] / loop.recorded[-1]["steps"] == 0.5
        loop.windows.switcher.disturb()
        assert loop.settle("baseline")[1] == 2 and not loop.windows.switcher.keeps_up, "from now on it is known"

    def test_the_fastest_batch_of_a_round_does_not_represent_the_workers(self) -> None:
        """In the latest window a batch took 1 s; the first one after the switch takes 1/16 s."""
        loop = self.loop()
        loop.measure("baseline")
        COSTS["baseline"] = 1 / 16
        try:
            loop.settle("device")
            assert loop.settle("baseline")[0] == "" and not loop.windows.switcher.keeps_up
        finally:
            COSTS["baseline"] = 1.0

    def test_windows_of_an_earlier_pass_count(self) -> None:
        """In that pass a worker took 1 s for a batch, too long for steps of 1/8 s; the first one now takes 1/16 s."""
        earlier = [
            Window("device", 0, 8, 1.0, 8),
            Window("sample", 0, 8, 4.0, 8, evidence={"worker_ms": 1000.0}),
        ]
        loop = Loop(earlier=earlier)
        assert loop.settle("sample")[0] == "" and not loop.windows.switcher.keeps_up
        loop = Loop(earlier=earlier[:1])
        assert loop.settle("sample")[0] == "" and loop.windows.switcher.keeps_up

    def test_queued_batches_do_not_count_as_supply(self) -> None:
        """The loader alone makes two batches a second, however slow the loop is."""
        loop = self.loop(step=4.0)
        for _ in range(2):
            loop.measure("supply")
            assert (loop.recorded[-1]["steps"], loop.recorded[-1]["seconds"]) == (6, 3.0)
            loop.measure("device")

    def test_no_wait_for_queues_that_cannot_be_seen(self) -> None:
        loop = self.loop()
        beside(loop, REMEDIED)
        assert loop.settle(REMEDIED) == ("", 2, 0, 1 / 16 + 2 / 8)


class TestLength:
    """The number of batches in a window."""

    def window(self, loop: Loop, rung: str = "baseline") -> dict[str, Any]:
        assert loop.measure(rung)[0] == ""
        return loop.recorded[-1]

    def test_three_rounds_if_the_loop_waits(self) -> None:
        """A round takes 1 s, and so does the target of the window."""
        window = self.window(Loop())
        assert (window["steps"], window["seconds"]) == (6, 3.0)

    def test_fewer_rounds_if_they_would_take_too_much_of_the_budget(self) -> None:
        """15 % of 4 s are less than a round; a window has at least one, four batches, and the length of settling."""
        assert self.window(Loop(budget=4.0, workers=5))["steps"] == 10
        assert self.window(Loop(budget=80.0, workers=5))["steps"] == 15
        assert self.window(Loop(budget=4.0))["steps"] == 4

    def test_at_least_as_long_as_settling_took(self) -> None:
        """Settling mostly waits for the workers of the baseline: 37.5 batches of 1/32 s, in whole rounds."""
        loop = Loop(step=1 / 64, target=0.25)
        beside(loop, CLONED)
        loop.measure("baseline")
        assert loop.settle(CLONED)[3] == 37.5 / 32
        window = self.window(loop, CLONED)
        assert (window["steps"], window["seconds"]) == (38, 38 / 32)

    @pytest.mark.parametrize("rung", ["sample", "device"])
    def test_the_target_length_if_the_loop_does_not_wait(self, rung: str) -> None:
        """The length of settling does not matter: such windows are alike. Eight steps take 0.5 s."""
        loop = Loop(step=1 / 16, target=0.5)
        loop.settle("device")
        loop.settle("baseline")
        assert loop.settle(rung)[3] > 0.5
        window = self.window(loop, rung)
        assert (window["steps"], window["seconds"]) == (8, 0.5)

    def test_no_whole_rounds_if_the_workers_keep_up(self) -> None:
        """Seven steps of 1/4 s with five workers: the target length, and no whole round."""
        window = self.window(Loop(step=1 / 4, workers=5, target=1.75), "sample")
        assert (window["steps"], window["seconds"]) == (7, 1.75)

    def test_no_whole_rounds_under_a_cached_rung(self) -> None:
        loop = Loop(step=1 / 4, workers=5, target=1.75)
        loop.rest()
        window = self.window(loop, "device")
        assert (window["steps"], window["seconds"]) == (7, 1.75)
        assert "wait_ms" not in window["evidence"]

    def test_two_slow_steps_are_enough(self) -> None:
        loop = Loop(step=1.5)
        loop.rest()
        window = self.window(loop, "device")
        assert (window["steps"], window["seconds"]) == (2, 3.0)

    def test_time_waited(self) -> None:
        """Two batches arrive together every second, of which the loop has used 2/8 by then."""
        evidence = self.window(Loop())["evidence"]
        assert evidence["wait_ms"] == 1000 * (1.0 - 2 / 8) / 2
        assert (evidence["worker_ms"], evidence["worker_cpu"]) == (1000.0, 0.0)

    def test_queued_batches_are_in_no_window(self) -> None:
        loop = Loop()
        self.window(loop, "device")
        loop.rest()
        window = self.window(loop)
        assert (window["steps"], window["seconds"]) == (6, 3.0)

    def test_windows_follow_each_other_without_settling(self) -> None:
        loop = Loop()
        self.window(loop)
        assert loop.measure("baseline") == ("", 6, 6, 3.0)


class TestEpochs:
    """Windows continue over the ends of epochs; time between epochs is left out."""

    def test_epochs_of_four_batches(self) -> None:
        loop = Loop(length=4)
        trouble, steps, _, _ = loop.measure("baseline")
        assert (trouble, steps) == ("", 2 + 6), "the loop is settled once"
        (window,) = loop.recorded
        assert (window["steps"], window["optimizer_steps"]) == (6, 6)
        # No minute between two epochs is included. Workers begin again when the loop asks for its next batch; within an
        # epoch they would have begun during its last two steps.
        assert window["seconds"] == 3.0 + 2 / 8

    def test_batches_made_between_two_epochs_are_dropped(self) -> None:
        """Workers make eight batches in that minute; a loop that otherwise waits for them would train on those."""
        loop = Loop(length=4)
        _, steps, taken, _ = loop.measure("baseline")
        assert taken - steps == 8, "one epoch ends within the window"
        loop = Loop(length=4, step=4.0)
        _, steps, taken, _ = loop.measure("sample")
        assert taken - steps <= 2, "full queues stay full"

    def test_an_epoch_without_training_is_dropped(self) -> None:
        """The loop evaluates on its training data: the four batches of the second epoch do not count."""
        loop = Loop(length=4)
        loop.evaluates = {1}
        trouble, steps, _, _ = loop.measure("baseline")
        (window,) = loop.recorded
        assert (trouble, steps) == ("", 2 + 6 + 4)
        assert (window["steps"], window["optimizer_steps"]) == (6, 6)

    def restarted(self, target: float) -> Loop:
        """Return a loop with epochs of eight batches, two of them for settling. Workers need 0.5 s to start."""
        loop = Loop(length=8, startup=0.5, target=target)
        loop.feed.loader.persistent_workers = False
        del loop.feed.findings.startups[1:]
        return loop

    def test_restarted_workers_are_settled_first(self) -> None:
        """Half a second to start and 1 s for the first batches are startup, and part of no step.

        The window wants 14 steps; the first epoch gives six, less than half.
        """
        loop = self.restarted(target=7.0)
        trouble, steps, _, _ = loop.measure("baseline")
        (window,) = loop.recorded
        assert (trouble, steps) == ("", 2 + 6 + 2 + 6), "the loop is settled in each"
        assert (window["steps"], window["optimizer_steps"] - 2) == (12, 12)
        assert window["seconds"] == window["steps"] / 2

    def test_half_a_window_is_enough_with_restarted_workers(self) -> None:
        """Six steps of twelve: settling again would take as long as the missing steps."""
        loop = self.restarted(target=6.0)
        assert loop.measure("baseline")[:2] == ("", 2 + 6)
        (window,) = loop.recorded
        assert (window["steps"], window["seconds"]) == (6, 3.0)
        assert loop.measure("baseline")[:2] == ("", 2 + 6), "the loop is settled for the next one"

    def test_half_a_window_is_not_enough_with_persistent_workers(self) -> None:
        loop = Loop(length=8, target=6.0)
        assert loop.measure("baseline")[:2] == ("", 2 + 12)
        assert [window["steps"] for window in loop.recorded] == [12]

    def test_half_a_window_must_suffice_for_a_window(self) -> None:
        """Three steps of six are too few to be kept as a window."""
        loop = self.restarted(target=0.25)
        loop.epochs.length = loop.length = 5
        loop.measure("baseline")
        assert [window["steps"] for window in loop.recorded] == [6]

    def test_a_loop_that_leaves_before_the_end(self) -> None:
        """It is known to leave after six batches: the last step before that is in no stretch."""
        loop = Loop(horizon=6, leaves=6)
        trouble, _, _, _ = loop.measure("baseline")
        (window,) = loop.recorded
        assert trouble == "" and window["steps"] == 6
        assert window["seconds"] == pytest.approx(3.0, rel=0.2)

    def test_a_loop_that_leaves_unexpectedly(self) -> None:
        """The stretch whose end was not seen is dropped; earlier stretches are kept."""
        loop = Loop(leaves=6)
        trouble, _, _, _ = loop.measure("baseline")
        (window,) = loop.recorded
        assert trouble == "" and window["steps"] == 6
        assert window["seconds"] < 6.0, "it does not include the minute between epochs"


class TestOtherLoaders:
    """A window in which the script drew from another loader, as for validation, timed more than the training."""

    def test_a_validation_between_two_epochs(self) -> None:
        """It is between two stretches of the window, like everything else that the loop does there."""
        loop = Loop(length=4)
        loop.validates_between = True
        assert loop.measure("baseline")[0] == ""
        assert loop.draws == 1
        assert [(window["steps"], window["optimizer_steps"]) for window in loop.recorded] == [(6, 6)]

    def test_a_validation_during_settling(self) -> None:
        loop = Loop()
        loop.validates = {1, 2}
        assert loop.measure("baseline")[0] == ""
        assert len(loop.recorded) == 1

    @pytest.mark.parametrize("step", [3, 8])
    def test_a_validation_within_a_stretch(self, step: int) -> None:
        """The window's steps are the third to the eighth."""
        loop = Loop()
        loop.validates = {step}
        assert loop.measure("baseline")[0] == "other code ran in every window"
        assert loop.recorded == []
        assert loop.measure("baseline")[0] == ""
        assert len(loop.recorded) == 1, "the next window is not affected"

    def test_a_validation_within_the_first_of_two_stretches(self) -> None:
        loop = Loop(length=4)
        loop.validates = {3}
        assert loop.measure("baseline")[0] == "other code ran in every window"

    def test_a_validation_in_every_window_is_part_of_the_training(self) -> None:
        loop = Loop()
        loop.validates = set(range(100))
        for _ in range(3):
            assert loop.measure("baseline")[0] == "other code ran in every window"
        assert loop.measure("baseline")[0] == ""
        assert len(loop.recorded) == 1
        assert ("warning", dict(OTHER_LOADERS)) in loop.events


class TestStretches:
    """The single steps recorded with a window, and the batches that arrived meanwhile."""

    def stretches(self, loop: Loop) -> list[dict[str, Any]]:
        return [data for kind, data in loop.events if kind == "stretch"]

    def test_of_a_window(self) -> None:
        """Two batches arrive together every second. They are made while the loop waits and works."""
        loop = Loop()
        loop.measure("baseline")
        (stretch,) = self.stretches(loop)
        began = 1.0 + 2 / 8  # the loop has settled
        assert (stretch["rung"], stretch["round"], stretch["attempt"]) == ("baseline", 0, 1)
        assert stretch["asked"] == [began + n + m for n in range(3) for m in (0.0, 7 / 8)]
        assert stretch["got"] == [began + n + m for n in range(3) for m in (6 / 8, 7 / 8)]
        assert stretch["ready"] == [0, 1] * 3
        assert stretch["ended"] == began + 3.0
        assert stretch["worker"] == [0, 1] * 3
        assert stretch["made_from"] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
        assert stretch["made_until"] == [2.0, 2.0, 3.0, 3.0, 4.0, 4.0]

    @pytest.mark.parametrize("rung", ["device", "host"])
    def test_of_a_cache(self, rung: str) -> None:
        """The loop never waits, and does not take from the queue."""
        loop = Loop()
        loop.rest()
        loop.measure(rung)
        (stretch,) = self.stretches(loop)
        assert len(stretch["asked"]) == loop.recorded[-1]["steps"]
        assert stretch["asked"] == stretch["got"]
        assert {*stretch["ready"]} == {0}
        assert stretch["worker"] == []

    @pytest.mark.parametrize("rung", [REMEDIED, CLONED])
    def test_of_another_loader(self, rung: str) -> None:
        loop = Loop()
        beside(loop, rung)
        loop.measure(rung)
        (stretch,) = self.stretches(loop)
        assert stretch["rung"] == rung
        assert len(stretch["asked"]) == len(stretch["worker"]) == loop.recorded[-1]["steps"]

    def test_of_the_loader_alone(self) -> None:
        """The loop waits for it all the time."""
        loop = Loop()
        loop.measure("supply")
        (stretch,) = self.stretches(loop)
        assert stretch["got"] == [*stretch["asked"][1:], stretch["ended"]]
        assert len(stretch["worker"]) == loop.recorded[-1]["steps"]

    def test_each_epoch_has_its_own_stretch(self) -> None:
        loop = Loop(length=4)
        loop.measure("baseline")
        assert [len(stretch["asked"]) for stretch in self.stretches(loop)] == [2, 4]

    def test_a_discarded_window_has_none(self) -> None:
        loop = Loop()
        loop.validates = {3}
        loop.measure("baseline")
        assert self.stretches(loop) == []

    def test_a_stretch_whose_end_was_not_seen_has_none(self) -> None:
        """The loop leaves after six batches, two of them for settling: the end of its last step is not seen."""
        loop = Loop(leaves=6)
        loop.measure("baseline")
        steps = [len(stretch["asked"]) for stretch in self.stretches(loop)]
        assert sum(steps) == loop.recorded[-1]["steps"]


class TestSupply:
    def test_the_loader_alone(self) -> None:
        """The loop takes no step; the workers can make two batches per second."""
        loop = Loop()
        assert loop.measure("supply")[:2] == ("", 0)
        (window,) = loop.recorded
        assert (window["rung"], window["steps"], window["seconds"], window["optimizer_steps"]) == ("supply", 6, 3.0, 0)

    def test_ends_early_if_the_pace_was_underestimated(self) -> None:
        loop = Loop()
        loop.windows.switcher.pace["supply"] = 1e-3
        loop.measure("supply")
        (window,) = loop.recorded
        assert window["seconds"] <= 3.0 * 1.0 + 1.0
