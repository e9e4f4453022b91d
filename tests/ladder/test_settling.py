"""How the loop settles under a rung: each step, batch and second is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pipediag.ladder.workers.rung_switch import PAUSE
from pipediag.session import REMEDIED, Window

from .simulated import CLONED, COSTS, QUIET, STILL, Loop, beside, prepared

pytestmark = pytest.mark.usefixtures("exact_seconds")


#: The loop has taken a window fed from a cache, so that its own pace is known, and the queues are full.
PACED = ("rest", "window device")


@pytest.mark.parametrize(("options", "steps"), [({}, 8), ({"budget": 10.0}, 4), ({"horizon": 11}, 2)])
def test_a_second_of_steps_before_the_first_window(options: dict[str, Any], steps: int) -> None:
    """One-time work makes them slower. There are fewer with a small budget, or if the loop leaves early."""
    loop = prepared(options, ["rest"])
    assert loop.settle("device") == ("", steps, 0, STILL + steps / 8)
    loop.steering.disturb()
    assert loop.settle("device") == ("", 2, 0, STILL + 2 / 8), "only once"


@pytest.mark.usefixtures("no_first_seconds")
@pytest.mark.parametrize(
    ("options", "before", "rung", "steps", "taken", "seconds", "ready"),
    [
        # One round of the workers: the loop waits 1 s for the first batch, and the others are ready too.
        ({}, [], "baseline", 2, 2, 1.0 + 2 / 8, 0),
        ({"workers": 5}, [], "baseline", 5, 5, 1.0 + 5 / 8, 0),
        # Less for a loop that leaves early, and two steps under a cached rung.
        ({"workers": 5, "horizon": 11}, [], "baseline", 3, 3, 1.0 + 3 / 8, 2),
        ({}, ["rest"], "device", 2, 0, STILL + 2 / 8, 8),
        # Batches under way for another rung are dropped; requests that were not begun are served under the new one.
        ({}, ["baseline"], "sample", 2, 2 + 2, 13 / 16 + 2 / 8, 8),
        # So are queued ones, also of a loop slower than its workers: the ninth is requested when the first is taken.
        ({}, ["device", "rest"], "baseline", 2, 8 + 2, 1.0 + 2 / 8, 0),
        ({"step": 4.0}, ["sample"], "baseline", 2, 8 + 2, 1.0 + 2 * 4.0, 8),
        # If five workers keep up, two steps suffice.
        ({"step": 1.0, "workers": 5}, [], "sample", 2, 2, 1 / 16 + 2 * 1.0, 20),
        ({"step": 1 / 128, "workers": 5}, [], "sample", 5, 5, 1 / 16 + 5 / 128, 0),
        # A round arrives all at once: in 2/16 s two workers make four batches, and the loop takes one of them.
        ({"step": 1 / 16}, ["rest"], "sample", 2, 8 + 2, 1 / 16 + 2 / 16, 4),
        ({}, ["rest"], "sample", 2, 8 + 2, 1 / 16 + 2 / 8, 8),
        # Batches under way are finished before a cached rung: no step is spent on them, and the wait is limited to a
        # twentieth of the budget. Nobody waits for the queues to fill up.
        ({}, [0.5], "device", 2, 0, 0.5 + QUIET + 2 / 8, 2),
        ({"budget": 5.0}, [0.25], "device", 2, 0, 0.25 + 2 / 8, 0),
        # No wait from one cached rung to the other. Workers resume when a batch is taken, and two queued are dropped.
        ({}, [0.5, "device"], "host", 2, 0, 2 / 8, 2),
        ({}, [0.5, "device"], "baseline", 2, 2 + 2, 1.0 + 2 / 8, 0),
        # In training, workers that outpace the loop have full queues. So they fill them first: eight batches of the
        # baseline are dropped, the ninth comes after 1/16 s, and seven more once each worker has made four.
        ({}, PACED, "sample", 2, 8 + 2, 4 / 16 + 2 / 8, 8),
        # Not if the loop waits for them, or if they are hardly faster: a step takes 1/1024 s longer than a batch.
        ({}, PACED, "baseline", 2, 8 + 2, 1.0 + 2 / 8, 0),
        ({"step": 33 / 1024}, PACED, "sample", 2, 8 + 2, 1 / 16 + 2 * 33 / 1024, 2),
        # That wait is limited too. Then the loop takes steps until the queues are full: two.
        ({"budget": 5 / 8, "workers": 5}, PACED, "sample", 2, 20 + 2, 1 / 16 + 1 / 32 + 2 / 8, 20),
        # Queues that were not filled in time do not count as full: six batches come in 3/16 s, and two are taken.
        ({"budget": 5 / 8, "step": 3 / 64}, PACED, "sample", 2, 8 + 2, 1 / 16 + 1 / 32 + 2 * 3 / 64, 4),
    ],
)
def test_settling(
    options: dict[str, Any],
    before: Sequence[float | str],
    rung: str,
    steps: int,
    taken: int,
    seconds: float,
    ready: int,
) -> None:
    loop = prepared(options, before)
    assert loop.settle(rung) == ("", steps, taken, seconds)
    assert loop.feed.ready == ready
    assert loop.steering.keeps_up == (ready == loop.feed.backlog)
    if rung == "device" and 0.25 in before:
        assert loop.feed.at_work == 2, "they are not finished yet"


@pytest.mark.usefixtures("no_first_seconds")
class TestSettling:
    def test_nor_do_full_queues_if_workers_are_known_to_be_slower(self) -> None:
        """They were filled during two steps of 1 s; the known pace is 1/64 s per step."""
        loop = Loop(step=1.0)
        loop.steering.pace["device"] = 1 / 64
        loop.settle("sample")
        assert loop.feed.ready == loop.feed.backlog
        assert not loop.steering.keeps_up

    def test_a_settled_loop_is_not_settled_again(self) -> None:
        loop = Loop()
        loop.settle("baseline")
        assert loop.settle("baseline") == ("", 0, 0, 0.0)
        loop.steering.disturb()
        trouble, steps, taken, _ = loop.settle("baseline")
        assert (trouble, steps) == ("", 2) and taken >= 2

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


@pytest.mark.usefixtures("no_first_seconds")
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
        assert loop.steering.pace[REMEDIED] == 1 / 32
        ready = loop.feed.ready
        assert loop.settle("baseline") == ("", 2, ready + 2, 8 / 32 + 1.0 + 2 / 32)

    def test_waiting_takes_no_step_of_a_loop_that_leaves_early(self) -> None:
        loop = Loop(step=1 / 32, horizon=11)
        beside(loop, CLONED)
        loop.settle("baseline")
        assert loop.settle(CLONED) == ("", 2, 0, 15 / 16 + QUIET + 1 / 16 + 2 / 32)


@pytest.mark.usefixtures("no_first_seconds")
class TestFilling:
    """In training, workers that outpace the loop have full queues; so a window begins with full queues."""

    def loop(self, **options: Any) -> Loop:
        loop = prepared(options, PACED)
        assert loop.steering.pace["device"] == loop.step
        return loop

    def test_queues_are_full_before_the_window(self) -> None:
        loop = self.loop()
        loop.measure("sample")
        assert loop.recorded[-1]["evidence"]["stock"] == loop.recorded[-1]["evidence"]["wait_ms"] == 0.0

    def test_a_window_fed_from_full_queues_is_measured_again(self) -> None:
        """One slow step on a cached batch made the workers look fast enough.

        Eight queued batches suffice for a window at 8 steps/s, although two workers make two batches per second.
        """
        loop = self.loop()
        loop.steering.pace["device"] = 4.0
        loop.measure("baseline")
        assert len(loop.recorded) == 2, "the first one was the cached rung's"
        assert loop.recorded[-1]["seconds"] / loop.recorded[-1]["steps"] == 0.5
        loop.steering.disturb()
        assert loop.settle("baseline")[1] == 2 and not loop.steering.keeps_up, "from now on it is known"

    def test_the_fastest_batch_of_a_round_does_not_represent_the_workers(self) -> None:
        """In the latest window a batch took 1 s; the first one after the switch takes 1/16 s."""
        loop = self.loop()
        loop.measure("baseline")
        COSTS["baseline"] = 1 / 16
        try:
            loop.settle("device")
            assert loop.settle("baseline")[0] == "" and not loop.steering.keeps_up
        finally:
            COSTS["baseline"] = 1.0

    def test_windows_of_an_earlier_pass_count(self) -> None:
        """In that pass a worker took 1 s for a batch, too long for steps of 1/8 s; the first one now takes 1/16 s."""
        earlier = [
            Window("device", 0, 8, 1.0, 8),
            Window("sample", 0, 8, 4.0, 8, evidence={"worker_ms": 1000.0}),
        ]
        loop = Loop(earlier=earlier)
        assert loop.settle("sample")[0] == "" and not loop.steering.keeps_up
        loop = Loop(earlier=earlier[:1])
        assert loop.settle("sample")[0] == "" and loop.steering.keeps_up

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
