"""How the loop settles under a rung: each step, batch and second is exact."""

from __future__ import annotations

import pytest

from .simulated import STILL, Loop

pytestmark = pytest.mark.usefixtures("exact_seconds")


class TestFirst:
    """One-time work makes the first steps under a rung slower."""

    def test_one_second_of_steps_before_the_first_window(self) -> None:
        loop = Loop()
        loop.rest()
        assert loop.settle("device") == ("", 8, 0, STILL + 8 / 8)
        loop.steering.disturb()
        assert loop.settle("device") == ("", 2, 0, STILL + 2 / 8), "only once"

    def test_less_with_a_small_budget(self) -> None:
        loop = Loop(budget=10.0)
        loop.rest()
        assert loop.settle("device") == ("", 4, 0, STILL + 4 / 8)

    def test_not_for_a_loop_that_leaves_early(self) -> None:
        loop = Loop(horizon=11)
        loop.rest()
        assert loop.settle("device") == ("", 2, 0, STILL + 2 / 8)


@pytest.mark.usefixtures("no_first_seconds")
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
        assert loop.steering.keeps_up
        loop = Loop(step=1 / 128, workers=5)
        assert loop.settle("sample")[:2] == ("", 5)
        assert not loop.steering.keeps_up

    def test_one_queued_round_does_not_mean_that_workers_keep_up(self) -> None:
        """A round arrives all at once: in 2/16 s two workers make four batches, and the loop takes one of them."""
        loop = Loop(step=1 / 16)
        loop.rest()
        loop.settle("sample")
        assert loop.feed.ready == 4
        assert not loop.steering.keeps_up
        loop = Loop(step=1 / 8)
        loop.rest()
        loop.settle("sample")
        assert loop.feed.ready == loop.feed.backlog == 8
        assert loop.steering.keeps_up

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
