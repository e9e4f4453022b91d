"""Settling and timing, by a clock that only batches, steps and waiting move: every take, step and second is known."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipediag.ladder import switching
from pipediag.ladder import windows as module
from pipediag.ladder.caveats import OTHER_LOADERS
from pipediag.ladder.delivery import Delivery
from pipediag.ladder.loop_side import END, LoopSide
from pipediag.ladder.rung_switch import PAUSE
from pipediag.ladder.windows import Rounds, Windows
from pipediag.loop.epochs import Epochs
from pipediag.measure.device import Device
from pipediag.measure.evidence import BatchCost
from pipediag.measure.schedule import Schedule
from pipediag.session import REMEDIED, Session, Startup, Window, settings_rung

from ..clock import Clock

#: The rung of a clone of the loader, with settings of its own.
CLONED = settings_rung(1)
#: Seconds that a worker takes for a batch.
COSTS = {"baseline": 1.0, "sample": 1 / 16, "worker": 1 / 16, REMEDIED: 1 / 16, CLONED: 1 / 16}
#: Seconds between two looks at workers that are waited for, and for which nothing may come from them any more.
POLL, STILL = 1 / 64, 1 / 8
#: What is waited beyond the batch that was under way last: it was seen under way one look before.
QUIET = STILL - POLL

#: What workers make that are not paused while the loop is fed in another way.
_WORKERS_DO = dict.fromkeys(("device", "host", "supply", REMEDIED, CLONED), "baseline")


class Workers:
    """A loader's workers: each makes its batches one after another, under the rung that it finds when it begins.

    While they are paused they begin none, and what they were asked for they begin when the pause is over. Those of the
    remedied loader, as in truth, are neither seen nor paused.
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
        self.startups: list[Startup] = [Startup(0.0)] * 3
        self.worker_pids: list[int] = []
        self.waited = self.stalled = 0.0
        self.taken = 0
        self._own = own
        self._switches = [(0.0, own or "baseline")]
        self._pauses: list[tuple[float, float]] = []
        self.open()

    def open(self) -> None:
        """Begin with new workers, which are asked for all that is to lie ready, and are not paused."""
        self._resume()
        begins = self.clock.now() + self.startup
        self._free = [begins] * self.workers
        self._asked = [begins] * self.backlog  # when each batch was asked for
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
        """The first moment from then on at which a batch may be begun."""
        for since, until in self._pauses:
            if since <= moment < until and self._own != REMEDIED:
                moment = until
        return moment

    def _work(self, until: int | None = None) -> None:
        """Make batches: those begun by now, or all up to one that is waited for."""
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
        """How many batches they have begun so far."""
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
    """A training loop over these workers. It takes ``step`` seconds for a batch, and a minute between its epochs."""

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
        self.is_drawn_ahead = False  # by a thread of the script's
        self.training = SimpleNamespace(
            steps=0, drew=lambda ordinal: None, drawn_ahead=lambda ordinal: self.is_drawn_ahead
        )
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.epochs = Epochs(length, 0, horizon)
        self.loop_side = LoopSide(self.feed, self.epochs, self.training, 1, lambda: None)  # type: ignore[arg-type]
        setting = SimpleNamespace(
            plan=SimpleNamespace(inference=False, budget=budget, attempt=1),
            training=self.training,
            clock=self.clock,
            send=lambda kind, data: self.events.append((kind, dict(data))),
            draws_of_others=lambda ordinal: self.draws,
        )
        self.schedule = Schedule(
            ["baseline", "sample", "device", "host", "supply", REMEDIED, CLONED],
            Session(windows=[*earlier]),
            lambda session: [],
        )
        device, deadline = Device(torch.device("cpu")), SimpleNamespace(passed=False)
        rounds = Rounds(self.schedule, target)
        self.windows = Windows(
            self.feed,  # type: ignore[arg-type]
            self.loop_side,
            setting,  # type: ignore[arg-type]
            device,
            deadline,  # type: ignore[arg-type]
            rounds,
            1,
            False,
            lambda rung: None,
        )
        self.windows.caches = SimpleNamespace(device=Cache(), host=Cache(), shared=[])  # type: ignore[assignment]

    def drive(self, measuring: Generator[Any, None, str]) -> tuple[str, int, int, float]:
        """Train until it is through: what it returns, the steps made, batches taken and seconds gone meanwhile."""
        steps, taken, began = 0, self.feed.taken, self.clock.now()
        while True:
            try:
                turn = next(measuring)
            except StopIteration as end:
                return end.value, steps, self.feed.taken - taken, self.clock.now() - began
            if turn is END:
                self.clock.seconds += 60.0
                self.draws += self.validates_between
                self.loop_side.begin_epoch(self.length)
                continue
            steps += 1
            self.clock.seconds += self.step
            self.training.steps += self.epochs.serial not in self.evaluates
            self.draws += self.training.steps in self.validates
            if self.leaves is not None and self.epochs.handed == self.leaves:
                self.clock.seconds += 60.0
                self.loop_side.begin_epoch(self.length)

    def rest(self) -> None:
        """Wait until all workers have done what they were asked for."""
        self.clock.seconds += 60.0

    def settle(self, rung: str) -> tuple[str, int, int, float]:
        return self.drive(self.windows.settle(rung))

    def measure(self, rung: str) -> tuple[str, int, int, float]:
        return self.drive(self.windows.measure(rung))

    @property
    def recorded(self) -> list[dict[str, Any]]:
        return [data for kind, data in self.events if kind == "window"]


@pytest.fixture(autouse=True)
def no_first_seconds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settling takes no longer under a rung that is new, except where that is what is tested."""
    if request.cls is not TestFirst:
        monkeypatch.setattr(module, "_FIRST_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def exact_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are looked at when something may have happened, and sums of such times are exact."""
    monkeypatch.setattr(switching, "_POLL", POLL)
    monkeypatch.setattr(switching, "_STILL", STILL)


class TestFirst:
    """What a step does for the first time under a rung takes longer than it does afterwards."""

    def test_a_second_of_steps_before_the_first_window(self) -> None:
        loop = Loop()
        loop.rest()
        assert loop.settle("device") == ("", 8, 0, STILL + 8 / 8)
        loop.windows.switcher.disturb()
        assert loop.settle("device") == ("", 2, 0, STILL + 2 / 8), "once"

    def test_a_small_budget_gives_less(self) -> None:
        loop = Loop(budget=10.0)
        loop.rest()
        assert loop.settle("device") == ("", 4, 0, STILL + 4 / 8)

    def test_a_loop_that_leaves_early_has_no_time_for_that(self) -> None:
        loop = Loop(horizon=11)
        loop.rest()
        assert loop.settle("device") == ("", 2, 0, STILL + 2 / 8)


class TestSettling:
    def test_one_round_of_the_workers(self) -> None:
        """The loop waits 1 s for the first batch; the second is there, and the loop takes its two steps."""
        assert Loop().settle("baseline") == ("", 2, 2, 1.0 + 2 / 8)

    def test_as_many_steps_as_there_are_workers(self) -> None:
        assert Loop(workers=5).settle("baseline") == ("", 5, 5, 1.0 + 5 / 8)

    def test_under_a_cache_two_steps(self) -> None:
        loop = Loop()
        loop.rest()
        assert loop.settle("device") == ("", 2, 0, STILL + 2 / 8)

    def test_what_is_being_made_for_another_rung_is_taken_without_a_step(self) -> None:
        """The two batches that the workers are at; what they had not begun they make under the new rung."""
        loop = Loop()
        loop.settle("baseline")
        trouble, steps, taken, _ = loop.settle("sample")
        assert (trouble, steps, taken) == ("", 2, 2 + 2)

    def test_what_lies_ready_is_taken_without_a_step(self) -> None:
        """Eight batches of the baseline lay ready; the ninth was asked for when the first of them was taken."""
        loop = Loop()
        loop.settle("device")
        loop.rest()
        trouble, steps, taken, seconds = loop.settle("baseline")
        assert (trouble, steps, taken) == ("", 2, 8 + 2)
        assert seconds == 1.0 + 2 / 8, "the loop does not live on what lay ready, nor does it wait for as many more"

    def test_a_loop_slower_than_its_workers_makes_no_steps_on_what_lies_ready(self) -> None:
        loop = Loop(step=4.0)
        loop.settle("sample")
        assert loop.feed.ready == 8
        trouble, steps, taken, seconds = loop.settle("baseline")
        assert (trouble, steps, taken) == ("", 2, 8 + 2)
        assert seconds == 1.0 + 2 * 4.0

    def test_full_queues_end_it(self) -> None:
        """Of five workers that keep up, two steps are enough."""
        loop = Loop(step=1.0, workers=5)
        assert loop.settle("sample")[:2] == ("", 2)
        assert loop.windows.switcher.keeps_up
        loop = Loop(step=1 / 128, workers=5)
        assert loop.settle("sample")[:2] == ("", 5)
        assert not loop.windows.switcher.keeps_up

    def test_a_round_that_lies_ready_is_no_sign_that_workers_keep_up(self) -> None:
        """It comes all at once: in 2/16 s two workers make four batches, of which the loop has taken one."""
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

    def test_nor_are_full_queues_where_workers_are_known_to_be_slower(self) -> None:
        """These filled them in two steps of a second; as a rule such a step takes 1/64 s."""
        loop = Loop(step=1.0)
        loop.windows.switcher.pace["device"] = 1 / 64
        loop.settle("sample")
        assert loop.feed.ready == loop.feed.backlog
        assert not loop.windows.switcher.keeps_up

    def test_a_loop_that_is_settled_is_not_settled_again(self) -> None:
        loop = Loop()
        loop.settle("baseline")
        assert loop.settle("baseline") == ("", 0, 0, 0.0)
        loop.windows.switcher.disturb()
        trouble, steps, taken, _ = loop.settle("baseline")
        assert (trouble, steps) == ("", 2) and taken >= 2

    def test_a_loop_that_leaves_early_has_no_time_for_a_whole_round(self) -> None:
        assert Loop(workers=5, horizon=11).settle("baseline")[1] == 3

    def test_a_rung_that_cannot_be_served(self) -> None:
        """Two batches were being made for the rung before; the third says why. No more are asked for."""
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
    """The loop gets the batches of ``rung`` from other workers."""
    loop.loop_side.serve(rung, other := Workers(loop.clock, prefetch=prefetch, own=rung))  # type: ignore[arg-type]
    return other


class TestPausing:
    """Workers share the loop's cores: none but those that feed it may make batches meanwhile."""

    @pytest.mark.parametrize("rung", ["device", "host"])
    def test_under_a_cache_no_batch_is_begun(self, rung: str) -> None:
        """Two batches are half made; six requests wait, for longer than a pause would last by itself."""
        loop = Loop(target=3 * PAUSE)
        loop.clock.seconds = 0.5
        assert loop.feed.begun == 2
        assert loop.measure(rung)[:3] == ("", 2 + 240, 0)
        assert (loop.feed.begun, loop.feed.ready) == (2, 2)

    def test_what_is_under_way_is_made_first(self) -> None:
        """Half a second of a batch is left, and no step is spent on it. Queues are not waited for to fill up."""
        loop = Loop()
        loop.clock.seconds = 0.5
        assert loop.settle("device") == ("", 2, 0, 0.5 + QUIET + 2 / 8)
        assert loop.feed.ready == 2 < loop.feed.backlog

    def test_and_is_not_waited_for_too_long(self) -> None:
        """A twentieth of 5 s."""
        loop = Loop(budget=5.0)
        loop.clock.seconds = 0.25
        assert loop.settle("device") == ("", 2, 0, 0.25 + 2 / 8)
        assert loop.feed.at_work == 2, "they are at it still"

    def test_from_one_cache_to_the_other_there_is_nothing_to_wait_for(self) -> None:
        loop = Loop()
        loop.clock.seconds = 0.5
        loop.settle("device")
        assert loop.settle("host") == ("", 2, 0, 2 / 8)
        assert loop.feed.begun == 2

    def test_they_go_on_when_a_batch_is_taken(self) -> None:
        """The two that lay ready are dropped. What was asked for long ago is made now, as what is asked for now."""
        loop = Loop()
        loop.clock.seconds = 0.5
        loop.settle("device")
        assert loop.settle("baseline") == ("", 2, 2 + 2, 1.0 + 2 / 8)

    @pytest.mark.parametrize("rung", [REMEDIED, CLONED])
    def test_the_loaders_own_while_another_feeds_the_loop(self, rung: str) -> None:
        loop = Loop(target=3 * PAUSE)
        other = beside(loop, rung)
        loop.clock.seconds = 0.5
        assert loop.measure(rung)[0] == ""
        assert loop.recorded[-1]["seconds"] >= 3 * PAUSE
        assert loop.feed.begun == 2 < other.begun

    def test_another_loaders_while_its_own_feed_the_loop(self) -> None:
        """The clone's workers hold the loop up: of the eight batches they were asked for they have begun two."""
        loop = Loop(step=1 / 64, target=3 * PAUSE)
        clone = beside(loop, CLONED, prefetch=4)
        loop.measure(CLONED)
        begun = clone.begun
        assert begun == clone.taken + 2
        loop.measure("baseline")
        assert (clone.begun, clone.ready) == (begun, 2)
        loop.settle(CLONED)
        assert clone.begun > begun, "they go on where they were"

    def test_the_other_loaders_are_idle_before_its_own_feed_the_loop(self) -> None:
        """The loop gets two batches with every whole second and has made two steps of them when it turns to the clone:
        15/16 s are left of what the workers are at. A clone's batch made since is there 1/16 s after that."""
        loop = Loop(step=1 / 32)
        beside(loop, CLONED)
        loop.measure("baseline")
        assert loop.clock.now() % 1 == 2 / 32
        assert loop.settle(CLONED) == ("", 2, 0, 15 / 16 + QUIET + 1 / 16 + 2 / 32)

    def test_workers_that_cannot_be_seen_have_filled_their_queues(self) -> None:
        """Eight batches of the remedied loader, one every 1/32 s; then one of the baseline takes a second."""
        loop = Loop(step=1 / 32)
        beside(loop, REMEDIED, prefetch=4)
        loop.measure(REMEDIED)
        assert loop.windows.switcher.pace[REMEDIED] == 1 / 32
        ready = loop.feed.ready
        assert loop.settle("baseline") == ("", 2, ready + 2, 8 / 32 + 1.0 + 2 / 32)

    def test_a_loop_that_leaves_early_spends_no_step_on_that(self) -> None:
        loop = Loop(step=1 / 32, horizon=11)
        beside(loop, CLONED)
        loop.settle("baseline")
        assert loop.settle(CLONED) == ("", 2, 0, 15 / 16 + QUIET + 1 / 16 + 2 / 32)


class TestFilling:
    """Workers that outpace the loop have their queues full in training; a window begins with them full."""

    def loop(self, **options: Any) -> Loop:
        """One that takes 1/8 s a step, as is known from a cached rung; the workers have filled their queues."""
        loop = Loop(**options)
        loop.rest()
        loop.measure("device")
        assert loop.windows.switcher.pace["device"] == loop.step
        return loop

    def test_queues_are_full_before_the_window(self) -> None:
        """Eight batches of the baseline are dropped, the ninth comes after 1/16 s, and seven more lie ready when the
        workers have made four each. No step is spent on that; two are, as under any rung."""
        loop = self.loop()
        assert loop.settle("sample") == ("", 2, 8 + 2, 4 / 16 + 2 / 8)
        assert loop.feed.ready == loop.feed.backlog == 8
        loop.measure("sample")
        assert loop.recorded[-1]["evidence"]["stock"] == loop.recorded[-1]["evidence"]["wait_ms"] == 0.0

    def test_not_those_of_workers_that_the_loop_waits_for(self) -> None:
        loop = self.loop()
        assert loop.settle("baseline") == ("", 2, 8 + 2, 1.0 + 2 / 8)
        assert loop.feed.ready == 0

    def test_nor_of_workers_that_are_hardly_faster(self) -> None:
        """Two workers make a batch every 1/32 s, which a step takes 1/1024 s longer than."""
        loop = self.loop(step=33 / 1024)
        assert loop.settle("sample") == ("", 2, 8 + 2, 1 / 16 + 2 * 33 / 1024)

    def test_nor_where_it_is_not_known_how_fast_the_loop_is(self) -> None:
        loop = Loop()
        loop.rest()
        assert loop.settle("sample") == ("", 2, 8 + 2, 1 / 16 + 2 / 8)

    def test_and_are_not_waited_for_too_long(self) -> None:
        """A twentieth of 5/8 s. Then the loop makes a round of steps, or those until they are full: that takes two."""
        loop = self.loop(budget=5 / 8, workers=5)
        trouble, steps, _, seconds = loop.settle("sample")
        assert (trouble, steps) == ("", 2)
        assert seconds == 1 / 16 + 1 / 32 + 2 / 8

    def test_queues_that_were_not_full_in_time_are_not_taken_for_full(self) -> None:
        """In 3/16 s the workers have made six batches, of which the loop has taken two."""
        loop = self.loop(budget=5 / 8, step=3 / 64)
        assert loop.settle("sample") == ("", 2, 8 + 2, 1 / 16 + 1 / 32 + 2 * 3 / 64)
        assert loop.feed.ready == 4
        assert not loop.windows.switcher.keeps_up

    def test_a_window_that_lives_on_full_queues_is_measured_again(self) -> None:
        """One slow step on a cached batch made the workers look fast enough. Eight queued batches last for the window:
        8 steps/s, where two workers make two batches per second."""
        loop = self.loop()
        loop.windows.switcher.pace["device"] = 4.0
        loop.measure("baseline")
        assert len(loop.recorded) == 2, "the first of the two was the cache's"
        assert loop.recorded[-1]["seconds"] / loop.recorded[-1]["steps"] == 0.5
        loop.windows.switcher.disturb()
        assert loop.settle("baseline")[1] == 2 and not loop.windows.switcher.keeps_up, "it is known from then on"

    def test_the_fastest_batch_of_a_round_does_not_stand_for_the_workers(self) -> None:
        """In the latest window a batch took 1 s. The first one after the switch took 1/16 s."""
        loop = self.loop()
        loop.measure("baseline")
        COSTS["baseline"] = 1 / 16
        try:
            loop.settle("device")
            assert loop.settle("baseline")[0] == "" and not loop.windows.switcher.keeps_up
        finally:
            COSTS["baseline"] = 1.0

    def test_windows_of_an_earlier_pass_count(self) -> None:
        """In that pass a worker took 1 s for a batch, too long for a loop of 1/8 s. The first one now takes 1/16 s."""
        earlier = [
            Window("device", 0, 8, 1.0, 8),
            Window("sample", 0, 8, 4.0, 8, evidence={"worker_ms": 1000.0}),
        ]
        loop = Loop(earlier=earlier)
        assert loop.settle("sample")[0] == "" and not loop.windows.switcher.keeps_up
        loop = Loop(earlier=earlier[:1])
        assert loop.settle("sample")[0] == "" and loop.windows.switcher.keeps_up

    def test_what_lies_ready_is_no_supply(self) -> None:
        """The loader alone makes two batches a second, however slow the loop is."""
        loop = self.loop(step=4.0)
        for _ in range(2):
            loop.measure("supply")
            assert (loop.recorded[-1]["steps"], loop.recorded[-1]["seconds"]) == (6, 3.0)
            loop.measure("device")

    def test_queues_that_cannot_be_seen_are_not_waited_for(self) -> None:
        loop = self.loop()
        beside(loop, REMEDIED)
        assert loop.settle(REMEDIED) == ("", 2, 0, 1 / 16 + 2 / 8)


class TestLength:
    """How many batches a window has."""

    def window(self, loop: Loop, rung: str = "baseline") -> dict[str, Any]:
        assert loop.measure(rung)[0] == ""
        return loop.recorded[-1]

    def test_three_rounds_where_the_loop_waits(self) -> None:
        """A round takes 1 s, as does what the window should last."""
        window = self.window(Loop())
        assert (window["steps"], window["seconds"]) == (6, 3.0)

    def test_rounds_are_fewer_where_they_would_take_too_much_of_the_budget(self) -> None:
        """15 % of 4 s are less than a round; one there is, four batches at least, and as much as settling took."""
        assert self.window(Loop(budget=4.0, workers=5))["steps"] == 10
        assert self.window(Loop(budget=80.0, workers=5))["steps"] == 15
        assert self.window(Loop(budget=4.0))["steps"] == 4

    def test_at_least_as_long_as_settling_took(self) -> None:
        """Which is mostly waiting for the workers of the baseline: 37.5 batches of 1/32 s, in whole rounds."""
        loop = Loop(step=1 / 64, target=0.25)
        beside(loop, CLONED)
        loop.measure("baseline")
        assert loop.settle(CLONED)[3] == 37.5 / 32
        window = self.window(loop, CLONED)
        assert (window["steps"], window["seconds"]) == (38, 38 / 32)

    @pytest.mark.parametrize("rung", ["sample", "device"])
    def test_no_longer_than_asked_for_where_nothing_holds_the_loop_up(self, rung: str) -> None:
        """However long settling took: such windows are alike. Eight steps are half a second."""
        loop = Loop(step=1 / 16, target=0.5)
        loop.settle("device")
        loop.settle("baseline")
        assert loop.settle(rung)[3] > 0.5
        window = self.window(loop, rung)
        assert (window["steps"], window["seconds"]) == (8, 0.5)

    def test_no_rounds_where_the_workers_keep_up(self) -> None:
        """Seven steps of a sixth of a second for five workers: what was asked for, and no whole round."""
        window = self.window(Loop(step=1 / 4, workers=5, target=1.75), "sample")
        assert (window["steps"], window["seconds"]) == (7, 1.75)

    def test_no_rounds_under_a_cache(self) -> None:
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

    def test_what_the_loop_waits(self) -> None:
        """Two batches come at once, once a second; the loop has used 2/8 of it by then."""
        evidence = self.window(Loop())["evidence"]
        assert evidence["wait_ms"] == 1000 * (1.0 - 2 / 8) / 2
        assert (evidence["worker_ms"], evidence["worker_cpu"]) == (1000.0, 0.0)

    def test_what_a_thread_waits_that_draws_ahead_is_not_the_loops(self) -> None:
        loop = Loop()
        loop.is_drawn_ahead = True
        evidence = self.window(loop)["evidence"]
        assert "wait_ms" not in evidence and evidence["worker_ms"] == 1000.0

    def test_what_lay_ready_is_in_no_window(self) -> None:
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
    """Windows go on over the ends of epochs, without what lies between them."""

    def test_epochs_of_four_batches(self) -> None:
        loop = Loop(length=4)
        trouble, steps, _, _ = loop.measure("baseline")
        assert (trouble, steps) == ("", 2 + 6), "the loop is settled once"
        (window,) = loop.recorded
        assert (window["steps"], window["optimizer_steps"]) == (6, 6)
        # No minute between two epochs is in it. The workers begin anew when the loop asks for its next batch; else they
        # would have begun while it was working on the two before.
        assert window["seconds"] == 3.0 + 2 / 8

    def test_what_workers_make_between_two_epochs_is_taken_out(self) -> None:
        """In a minute they make eight batches; a loop that waits for them would live on those."""
        loop = Loop(length=4)
        _, steps, taken, _ = loop.measure("baseline")
        assert taken - steps == 8, "one end of an epoch is inside the window"
        loop = Loop(length=4, step=4.0)
        _, steps, taken, _ = loop.measure("sample")
        assert taken - steps <= 2, "a loop whose queues are full finds them full, as it left them"

    def test_an_epoch_without_training_is_dropped(self) -> None:
        """A loop that evaluates on its training data: four batches of the second epoch count for nothing."""
        loop = Loop(length=4)
        loop.evaluates = {1}
        trouble, steps, _, _ = loop.measure("baseline")
        (window,) = loop.recorded
        assert (trouble, steps) == ("", 2 + 6 + 4)
        assert (window["steps"], window["optimizer_steps"]) == (6, 6)

    def started_anew(self, target: float) -> Loop:
        """Epochs of eight batches, two of which settling takes. Workers need half a second to start."""
        loop = Loop(length=8, startup=0.5, target=target)
        loop.feed.loader.persistent_workers = False
        del loop.feed.startups[1:]
        return loop

    def test_workers_that_are_started_anew_are_settled_first(self) -> None:
        """Half a second to start and a second for the first batches are start-up, and no step's.

        14 steps are wanted, of which the first epoch gives six: less than half.
        """
        loop = self.started_anew(target=7.0)
        trouble, steps, _, _ = loop.measure("baseline")
        (window,) = loop.recorded
        assert (trouble, steps) == ("", 2 + 6 + 2 + 6), "the loop is settled in each"
        assert (window["steps"], window["optimizer_steps"] - 2) == (12, 12)
        assert window["seconds"] == window["steps"] / 2

    def test_half_a_window_is_enough_where_they_are(self) -> None:
        """Six steps of twelve: settling anew would take as long as the rest of the window."""
        loop = self.started_anew(target=6.0)
        assert loop.measure("baseline")[:2] == ("", 2 + 6)
        (window,) = loop.recorded
        assert (window["steps"], window["seconds"]) == (6, 3.0)
        assert loop.measure("baseline")[:2] == ("", 2 + 6), "the loop is settled for the next one"

    def test_it_is_not_where_the_workers_go_on(self) -> None:
        loop = Loop(length=8, target=6.0)
        assert loop.measure("baseline")[:2] == ("", 2 + 12)
        assert [window["steps"] for window in loop.recorded] == [12]

    def test_nor_where_half_a_window_is_none(self) -> None:
        """Three steps of six are too few to be kept as a window."""
        loop = self.started_anew(target=0.25)
        loop.epochs.length = loop.length = 5
        loop.measure("baseline")
        assert [window["steps"] for window in loop.recorded] == [6]

    def test_a_loop_that_leaves_before_the_end(self) -> None:
        """After six batches, which is known: the last step before it leaves is in no stretch."""
        loop = Loop(horizon=6, leaves=6)
        trouble, _, _, _ = loop.measure("baseline")
        (window,) = loop.recorded
        assert trouble == "" and window["steps"] == 6
        assert window["seconds"] == pytest.approx(3.0, rel=0.2)

    def test_a_loop_that_leaves_when_nobody_expects_it(self) -> None:
        """The stretch whose end was not seen is dropped, and what was kept before stays."""
        loop = Loop(leaves=6)
        trouble, _, _, _ = loop.measure("baseline")
        (window,) = loop.recorded
        assert trouble == "" and window["steps"] == 6
        assert window["seconds"] < 6.0, "no minute is in it"


class TestOtherLoaders:
    """A window in which the script drew from another loader, as for a validation, timed more than the training."""

    def test_a_validation_between_two_epochs(self) -> None:
        """It is between two stretches of the window, as is everything else that the loop does there."""
        loop = Loop(length=4)
        loop.validates_between = True
        assert loop.measure("baseline")[0] == ""
        assert loop.draws == 1
        assert [(window["steps"], window["optimizer_steps"]) for window in loop.recorded] == [(6, 6)]

    def test_one_while_the_loop_is_settled(self) -> None:
        loop = Loop()
        loop.validates = {1, 2}
        assert loop.measure("baseline")[0] == ""
        assert len(loop.recorded) == 1

    @pytest.mark.parametrize("step", [3, 8])
    def test_one_within_a_stretch(self, step: int) -> None:
        """The window's steps are the third to the eighth."""
        loop = Loop()
        loop.validates = {step}
        assert loop.measure("baseline")[0] == "other code ran in every window"
        assert loop.recorded == []
        assert loop.measure("baseline")[0] == ""
        assert len(loop.recorded) == 1, "the next one is not spoilt"

    def test_one_within_the_first_of_two_stretches(self) -> None:
        loop = Loop(length=4)
        loop.validates = {3}
        assert loop.measure("baseline")[0] == "other code ran in every window"

    def test_one_in_every_window_is_part_of_the_training(self) -> None:
        loop = Loop()
        loop.validates = set(range(100))
        for _ in range(3):
            assert loop.measure("baseline")[0] == "other code ran in every window"
        assert loop.measure("baseline")[0] == ""
        assert len(loop.recorded) == 1
        assert ("warning", dict(OTHER_LOADERS)) in loop.events


class TestStretches:
    """Single steps of the windows that are recorded, and the batches that came meanwhile."""

    def stretches(self, loop: Loop) -> list[dict[str, Any]]:
        return [data for kind, data in loop.events if kind == "stretch"]

    def test_of_a_window(self) -> None:
        """Two batches come at once, once a second. They are made while the loop waits and works."""
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
        """The loop never waits, and what lies ready in the queue is not for it."""
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
        """It is waited for all the time."""
        loop = Loop()
        loop.measure("supply")
        (stretch,) = self.stretches(loop)
        assert stretch["got"] == [*stretch["asked"][1:], stretch["ended"]]
        assert len(stretch["worker"]) == loop.recorded[-1]["steps"]

    def test_epochs_are_apart(self) -> None:
        loop = Loop(length=4)
        loop.measure("baseline")
        assert [len(stretch["asked"]) for stretch in self.stretches(loop)] == [2, 4]

    def test_a_window_that_is_thrown_away_has_none(self) -> None:
        loop = Loop()
        loop.validates = {3}
        loop.measure("baseline")
        assert self.stretches(loop) == []

    def test_nor_has_a_stretch_whose_end_was_not_seen(self) -> None:
        """The loop leaves after six batches, two of which settling takes: the last of its step is not known to end."""
        loop = Loop(leaves=6)
        loop.measure("baseline")
        steps = [len(stretch["asked"]) for stretch in self.stretches(loop)]
        assert sum(steps) == loop.recorded[-1]["steps"]


class TestSupply:
    def test_the_loader_alone(self) -> None:
        """The loop makes no step; two batches a second are what the workers can do."""
        loop = Loop()
        assert loop.measure("supply")[:2] == ("", 0)
        (window,) = loop.recorded
        assert (window["rung"], window["steps"], window["seconds"], window["optimizer_steps"]) == ("supply", 6, 3.0, 0)

    def test_is_not_timed_for_long_where_its_pace_was_guessed_too_fast(self) -> None:
        loop = Loop()
        loop.windows.switcher.pace["supply"] = 1e-3
        loop.measure("supply")
        (window,) = loop.recorded
        assert window["seconds"] <= 3.0 * 1.0 + 1.0
