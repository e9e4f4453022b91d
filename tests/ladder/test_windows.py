"""Settling and timing, by a clock that only batches and steps move: every take, step and second is known."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipediag.ladder import windows as module
from pipediag.ladder.delivery import Delivery
from pipediag.ladder.epochs import Epochs
from pipediag.ladder.turns import END, Turns
from pipediag.ladder.windows import Rounds, Windows
from pipediag.measure.device import Device
from pipediag.measure.evidence import BatchCost
from pipediag.measure.schedule import Schedule
from pipediag.session import REMEDIED, Session, Startup

#: Seconds that a worker takes for a batch.
COSTS = {"baseline": 1.0, "sample": 1 / 16, "worker": 1 / 16, REMEDIED: 1 / 16}


#: What workers do while the loop is fed in another way.
_WORKERS_DO = dict.fromkeys(("device", "supply", REMEDIED), "baseline")


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Workers:
    """A loader's workers: each makes its batches one after another, under the rung that it finds when it begins."""

    def __init__(self, clock: Clock, workers: int = 2, prefetch: int = 4, own: str = "", startup: float = 0.0) -> None:
        self.clock = clock
        self.workers = workers
        self.backlog = workers * prefetch
        self.startup = startup
        self.why_not = ""
        self.stubborn = False
        self.loader = SimpleNamespace(num_workers=workers, persistent_workers=True)
        self.cell = SimpleNamespace(switch=self._switch, pool_bytes=0)
        self.startups: list[Startup] = [Startup(0.0)] * 3
        self.worker_pids: list[int] = []
        self.waited = self.stalled = 0.0
        self.taken = 0
        self._own = own
        self._switches = [(0.0, own or "baseline")]
        self.open()

    def open(self) -> None:
        """Begin with new workers, which are asked for all that is to lie ready."""
        begins = self.clock.now() + self.startup
        self._free = [begins] * self.workers
        self._asked = [begins] * self.backlog  # when each batch was asked for
        self._made: list[tuple[float, str, bool]] = []
        self._next = 0

    def renew(self) -> None:
        self.open()

    def _switch(self, rung: str) -> None:
        self._switches.append((self.clock.now(), _WORKERS_DO.get(rung, rung)))

    def _rung_at(self, moment: float) -> str:
        return [rung for since, rung in self._switches if since <= moment][-1]

    def _work(self, until: int | None = None) -> None:
        """Make batches: those begun by now, or all up to one that is waited for."""
        while len(self._made) < len(self._asked):
            number = len(self._made)
            worker = number % self.workers
            begun = max(self._free[worker], self._asked[number])
            if begun > self.clock.now() if until is None else number > until:
                return
            rung = self._own or ("baseline" if self.stubborn else self._rung_at(begun))
            self._free[worker] = made = begun + COSTS[rung]
            self._made.append((made, rung, bool(self._own) or self._rung_at(made) == rung))

    def take(self) -> Delivery:
        number, self._next, self.taken = self._next, self._next + 1, self.taken + 1
        self._work(number)
        made, rung, stable = self._made[number]
        self.clock.seconds = max(self.clock.seconds, made)
        self._asked.append(self.clock.now())
        cost = BatchCost(wall=COSTS[rung])
        return Delivery(torch.zeros(1), rung, stable, cost, number % self.workers, self.why_not, made=made)

    @property
    def ready(self) -> int:
        self._work()
        return sum(made <= self.clock.now() for made, *_ in self._made[self._next :])


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
        **workers: Any,
    ) -> None:
        self.clock = Clock()
        self.feed = Workers(self.clock, **workers)
        self.step = step
        self.length = length
        self.leaves = leaves
        self.evaluates: set[int] = set()  # epochs without training
        self.training = SimpleNamespace(steps=0, drew=lambda ordinal: None)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.epochs = Epochs(length, 0, horizon)
        self.turns = Turns(self.feed, self.epochs, self.training, 1, lambda: None)  # type: ignore[arg-type]
        setting = SimpleNamespace(
            plan=SimpleNamespace(inference=False, budget=budget, attempt=1),
            training=self.training,
            clock=self.clock,
            send=lambda kind, data: self.events.append((kind, dict(data))),
            draws_of_others=lambda ordinal: 0,
        )
        self.schedule = Schedule(["baseline", "sample", "device", "supply", REMEDIED], Session(), lambda session: [])
        device, deadline = Device(torch.device("cpu")), SimpleNamespace(passed=False)
        rounds = Rounds(self.schedule, target)
        self.windows = Windows(
            self.feed,  # type: ignore[arg-type]
            self.turns,
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
                self.turns.begin_epoch(self.length)
                continue
            steps += 1
            self.clock.seconds += self.step
            self.training.steps += self.epochs.serial not in self.evaluates
            if self.leaves is not None and self.epochs.handed == self.leaves:
                self.clock.seconds += 60.0
                self.turns.begin_epoch(self.length)

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


class TestFirst:
    """What a step does for the first time under a rung takes longer than it does afterwards."""

    def test_a_second_of_steps_before_the_first_window(self) -> None:
        loop = Loop()
        loop.rest()
        assert loop.settle("device") == ("", 8, 0, 8 / 8)
        loop.windows.disturb()
        assert loop.settle("device") == ("", 2, 0, 2 / 8), "once"

    def test_a_small_budget_gives_less(self) -> None:
        loop = Loop(budget=10.0)
        loop.rest()
        assert loop.settle("device") == ("", 4, 0, 4 / 8)

    def test_a_loop_that_leaves_early_has_no_time_for_that(self) -> None:
        loop = Loop(horizon=11)
        loop.rest()
        assert loop.settle("device") == ("", 2, 0, 2 / 8)


class TestSettling:
    def test_one_round_of_the_workers(self) -> None:
        """The loop waits 1 s for the first batch; the second is there, and the loop takes its two steps."""
        assert Loop().settle("baseline") == ("", 2, 2, 1.0 + 2 / 8)

    def test_as_many_steps_as_there_are_workers(self) -> None:
        assert Loop(workers=5).settle("baseline") == ("", 5, 5, 1.0 + 5 / 8)

    def test_under_a_cache_two_steps(self) -> None:
        loop = Loop()
        loop.rest()
        assert loop.settle("device") == ("", 2, 0, 2 / 8)

    def test_workers_fill_their_queues_first(self) -> None:
        """They make two batches a second for eight places, on the cores that the loop needs; a short script has few
        steps to wait with."""
        assert Loop().settle("device") == ("", 12, 0, 12 / 8)

    def test_and_are_not_waited_for_too_long(self) -> None:
        assert Loop(budget=20.0).settle("device") == ("", 8, 0, 1.0)

    def test_workers_whose_batches_nobody_wants_send_what_costs_them_nothing(self) -> None:
        """Two batches of the baseline are half made; the other six take three sixteenths of a second then."""
        loop = Loop()
        loop.clock.seconds = 0.5
        loop.windows.caches.shared.append(torch.zeros(1))  # type: ignore[union-attr]
        assert loop.settle("device") == ("", 6, 0, 6 / 8)
        assert loop.settle("baseline")[:3] == ("", 2, 8 + 2)

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

    def test_a_round_that_lies_ready_ends_it(self) -> None:
        """Of five workers that keep up, two steps are enough."""
        loop = Loop(step=1.0, workers=5)
        assert loop.settle("sample")[:2] == ("", 2)
        assert loop.windows._keeps_up
        loop = Loop(step=1 / 128, workers=5)
        assert loop.settle("sample")[:2] == ("", 5)
        assert not loop.windows._keeps_up

    def test_a_loop_that_is_settled_is_not_settled_again(self) -> None:
        loop = Loop()
        loop.settle("baseline")
        assert loop.settle("baseline") == ("", 0, 0, 0.0)
        loop.windows.disturb()
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

    def test_the_workers_of_the_other_loader_have_filled_their_queues(self) -> None:
        """Eight batches of half a second each disturb for 4 s, which is all of what the budget allows."""
        loop = Loop(step=1 / 32)
        loop.turns.serve(REMEDIED, Workers(loop.clock, prefetch=2, own=REMEDIED))
        loop.measure("baseline")
        assert loop.windows.pace["baseline"] == 0.5
        trouble, _, _, seconds = loop.settle(REMEDIED)
        assert trouble == "" and 3.5 < seconds < 4.0 + 2 / 32 + 1 / 16

    def test_and_not_for_long(self) -> None:
        loop = Loop(step=1 / 32, budget=20.0)
        loop.turns.serve(REMEDIED, Workers(loop.clock, prefetch=2, own=REMEDIED))
        loop.measure("baseline")
        assert 1.0 <= loop.settle(REMEDIED)[3] < 1.0 + 2 / 32 + 1 / 16

    def test_a_loop_that_leaves_early_has_no_time_for_that(self) -> None:
        loop = Loop(horizon=11)
        loop.turns.serve(REMEDIED, Workers(loop.clock, prefetch=2, own=REMEDIED))
        loop.windows.pace["baseline"] = 0.5
        loop.windows._fed_by = "baseline"
        assert loop.settle(REMEDIED)[:2] == ("", 2)


class TestLength:
    """How many batches a window has."""

    def window(self, loop: Loop, rung: str = "baseline") -> dict[str, Any]:
        assert loop.measure(rung)[0] == ""
        return loop.recorded[-1]

    def test_three_rounds_where_the_loop_waits(self) -> None:
        """A round takes 1 s, as does what the window should last."""
        window = self.window(Loop())
        assert (window["steps"], window["seconds"]) == (6, 3.0)

    def test_blocks_are_rounds(self) -> None:
        assert self.window(Loop(workers=5))["blocks"] == pytest.approx([1000 / 5] * 3)

    def test_rounds_are_fewer_where_they_would_take_too_much_of_the_budget(self) -> None:
        """15 % of 4 s are less than a round; one there is, four batches at least, and as much as settling took."""
        assert self.window(Loop(budget=4.0, workers=5))["steps"] == 10
        assert self.window(Loop(budget=80.0, workers=5))["steps"] == 15
        assert self.window(Loop(budget=4.0))["steps"] == 4

    def test_at_least_as_long_as_settling_took(self) -> None:
        """The loop was settled in 4 s, quick as the remedied loader is."""
        loop = Loop(step=1 / 32)
        loop.turns.serve(REMEDIED, Workers(loop.clock, prefetch=2, own=REMEDIED))
        loop.measure("baseline")
        window = self.window(loop, REMEDIED)
        assert window["seconds"] >= 4.0 - 1 / 8

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

    def test_workers_that_are_started_anew_are_settled_first(self) -> None:
        """Half a second to start and a second for the first batches are start-up, and no step's."""
        loop = Loop(length=8, startup=0.5)
        loop.feed.loader.persistent_workers = False
        del loop.feed.startups[1:]
        opened = []
        start = loop.feed.open

        def count() -> None:
            opened.append(loop.clock.now())
            start()

        loop.feed.open = count  # type: ignore[method-assign]
        loop.windows.rounds.target = 6.0
        assert loop.measure("baseline")[0] == ""
        (window,) = loop.recorded
        assert opened, "the window went over the end of an epoch"
        assert window["seconds"] == window["steps"] / 2
        assert set(window["blocks"]) == {500.0}

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


class TestSupply:
    def test_the_loader_alone(self) -> None:
        """The loop makes no step; two batches a second are what the workers can do."""
        loop = Loop()
        assert loop.measure("supply")[:2] == ("", 0)
        (window,) = loop.recorded
        assert (window["rung"], window["steps"], window["seconds"], window["optimizer_steps"]) == ("supply", 6, 3.0, 0)

    def test_is_not_timed_for_long_where_its_pace_was_guessed_too_fast(self) -> None:
        loop = Loop()
        loop.windows.pace["supply"] = 1e-3
        loop.measure("supply")
        (window,) = loop.recorded
        assert window["seconds"] <= 3.0 * 1.0 + 1.0
