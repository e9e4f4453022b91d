"""Windows of a simulated loop: their length, and exactly what they time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipediag.ladder.ranks.lockstep import Lockstep
from pipediag.ladder.steering import OutOfTime
from pipediag.ladder.windows import OTHER_LOADERS, torch_threads
from pipediag.ladder.workers.delivery import Delivery
from pipediag.measure.account import Times
from pipediag.measure.evidence import BatchCost
from pipediag.measure.stops import Stop
from pipediag.session import FEWER_THREADS, REMEDIED

from .simulated import CLONED, COSTS, Loop, beside, prepared

pytestmark = pytest.mark.usefixtures("exact_seconds", "no_first_seconds")


class TestLength:
    """The number of batches in a window."""

    def window(self, loop: Loop, rung: str = "baseline") -> dict[str, Any]:
        assert loop.measure(rung)[0] == ""
        return loop.recorded[-1]

    @pytest.mark.parametrize(
        ("options", "before", "rung", "steps", "seconds"),
        [
            # Three rounds of the workers if the loop waits. A round takes 1 s, and so does the target of the window.
            ({}, [], "baseline", 6, 3.0),
            ({"workers": 5}, [], "baseline", 15, 3.0),
            # Fewer if they would take more than 15 % of the budget: at least one round, and four batches.
            ({"budget": 4.0, "workers": 5}, [], "baseline", 5, 1.0),
            ({"budget": 4.0}, [], "baseline", 4, 2.0),
            # Fewer if they would take over 3 s: a round of 20 workers takes the loop 2.5 s. A long budget has room.
            ({"workers": 20}, [], "baseline", 40, 5.0),
            ({"workers": 20, "budget": 400.0}, [], "baseline", 60, 7.5),
            # The target length, and no whole rounds, if the workers keep up or a cache feeds the loop.
            ({"step": 1 / 4, "workers": 5, "target": 1.75}, [], "sample", 7, 1.75),
            ({"step": 1 / 4, "workers": 5, "target": 1.75}, ["rest"], "device", 7, 1.75),
            # Two slow steps are enough.
            ({"step": 1.5}, ["rest"], "device", 2, 3.0),
            # Queued batches are in no window.
            ({}, ["window device", "rest"], "baseline", 6, 3.0),
        ],
    )
    def test_steps_and_seconds(
        self, options: dict[str, Any], before: list[str], rung: str, steps: int, seconds: float
    ) -> None:
        window = self.window(prepared(options, before), rung)
        assert (window["steps"], window["seconds"]) == (steps, seconds)
        assert ("wait_ms" in window["evidence"]) == (rung != "device")

    def test_at_least_as_long_as_settling_took(self) -> None:
        """Settling mostly waits for the workers of the baseline: 37.5 batches of 1/32 s, in whole rounds."""
        loop = Loop(step=1 / 64, target=0.25)
        beside(loop, CLONED)
        loop.measure("baseline")
        assert loop.settle(CLONED)[3] == 37.5 / 32
        window = self.window(loop, CLONED)
        assert (window["steps"], window["seconds"]) == (38, 38 / 32)

    @pytest.mark.parametrize("rung", ["sample", "device"])
    def test_not_if_the_loop_does_not_wait(self, rung: str) -> None:
        """The length of settling does not matter: such windows are alike. Eight steps take 0.5 s."""
        loop = prepared({"step": 1 / 16, "target": 0.5}, ["device", "baseline"])
        assert loop.settle(rung)[3] > 0.5
        window = self.window(loop, rung)
        assert (window["steps"], window["seconds"]) == (8, 0.5)

    def test_time_waited(self) -> None:
        """Two batches arrive together every second, of which the loop has used 2/8 by then."""
        evidence = self.window(Loop())["evidence"]
        assert evidence["wait_ms"] == 1000 * (1.0 - 2 / 8) / 2
        assert (evidence["worker_ms"], evidence["worker_cpu"]) == (1000.0, 0.0)

    def test_the_wait_of_a_thread_that_draws_ahead_is_not_the_loops(self) -> None:
        loop = Loop()
        loop.is_drawn_ahead = True
        evidence = self.window(loop)["evidence"]
        assert "wait_ms" not in evidence and evidence["worker_ms"] == 1000.0
        assert not any(kind == "stretch" for kind, _ in loop.events)

    def test_windows_follow_each_other_without_settling(self) -> None:
        loop = Loop()
        self.window(loop)
        assert loop.measure("baseline") == ("", 6, 6, 3.0)


class TestPauses:
    """A process that is stopped works no longer, but its clock goes on."""

    def paused(self, rung: str, seconds: float, at: int = 8, step: float = 1 / 16) -> dict[str, Any]:
        loop = Loop(step, target=2.0)
        loop.rest()
        loop.settle(rung)
        loop.stands_still = {loop.training.steps + at: seconds}
        assert loop.measure(rung)[0] == ""
        return loop.recorded[-1]

    @pytest.mark.parametrize("at", [1, 2, 8, 32])
    def test_it_is_cut_out(self, at: int) -> None:
        """32 steps of 1/16 s; one takes 20 s longer, which are left out but counted."""
        window = self.paused("device", 20.0, at)
        assert (window["steps"], window["seconds"]) == (32, 2.0)
        if window["account"] is not None:
            assert window["account"]["left_out_s"] == 20.0 and window["account"]["other_ms"] <= 1000 / 16

    def test_workers_that_were_stopped_too(self) -> None:
        """Two workers take 1 s for a batch; the loop waits, is stopped for 50 s, and goes on as before."""
        window = self.paused("baseline", 50.0, at=4)
        if window["account"] is not None:
            assert window["account"]["left_out_s"] > 40.0
        assert window["seconds"] < 10.0

    def test_what_is_none(self) -> None:
        """0.9 s, as for a checkpoint, are training. Of two steps, nothing is known of what is usual."""
        assert self.paused("device", 0.9)["seconds"] == pytest.approx(2.0 + 0.9)
        assert self.paused("device", 40.0, at=1, step=1.5)["seconds"] == pytest.approx(2 * 1.5 + 40.0)

    def waited(self, stop: tuple[float, float] | None, begun: float) -> dict[str, Any]:
        """Return a window whose batches take 1 s each; for the second, begun so late, the loop waits 40 s."""
        loop = Loop(step=1 / 16, target=4.0)
        loop.rest()
        loop.settle("baseline")
        take, second, opened = loop.feed.take, loop.feed.taken + 2, loop.clock.now()

        def taken() -> Delivery:
            delivery = take()
            if loop.feed.taken == second:
                loop.clock.seconds += 40.0
                delivery.cost, delivery.made = BatchCost(wall=41.0), opened + begun + 41.0
                if stop is not None:
                    loop.feed.stops.add(Stop(opened + stop[0], opened + stop[1]))
                    loop.feed.stops.seen += stop[1] - stop[0]
            return delivery

        loop.feed.take = taken  # type: ignore[method-assign]
        loop.measure("baseline")
        return loop.recorded[-1]

    def test_a_stop_while_the_loop_waits(self) -> None:
        window = self.waited((1.0, 41.0), 0.5)
        assert (window["steps"], window["evidence"]["worker_ms"]) == (8, 1000.0) and window["seconds"] < 10.0
        if window["account"] is not None:
            assert (window["account"]["stopped_s"], window["account"]["left_out_s"]) == (40.0, 0.0)
            assert window["account"]["waits_ms"] < 1000.0

    def test_data_that_does_not_come_is_no_stop(self) -> None:
        """The workers go on: one of them was late, or a stop lies within none of their batches."""
        window = self.waited(None, 0.5)
        assert window["seconds"] > 40.0 and window["evidence"]["worker_ms"] > 5000.0
        if window["account"] is not None:
            assert (window["account"]["stopped_s"], window["account"]["left_out_s"]) == (0.0, 0.0)
        assert self.waited((1.0, 41.0), 20.0)["evidence"]["worker_ms"] > 5000.0


class InJob(Lockstep):
    world_size = 2


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

    def restarted(self, target: float, job: bool = True) -> Loop:
        """Return a rank's loop with epochs of eight batches, two of them for settling. Workers need 0.5 s to start."""
        loop = Loop(length=8, startup=0.5, target=target, lockstep=InJob() if job else None)
        loop.feed.loader.persistent_workers = False
        del loop.feed.findings.startups[1:]
        return loop

    def test_a_process_on_its_own_keeps_its_workers(self) -> None:
        """It starts them again when nothing else is measured."""
        loop = self.restarted(target=7.0, job=False)
        assert loop.measure("baseline")[:2] == ("", 2 + 14), "the loop is settled once"

    def test_the_ranks_of_a_job_restart_their_workers_only_if_these_make_batches_as_in_training(self) -> None:
        """Those under another rung would have to fill their caches again, and a pause would count as their start."""
        loop = self.restarted(target=4.0)
        loop.measure("sample")
        loop.measure("device")
        assert len(loop.feed.findings.startups) == 1 and loop.feed.launches == 1
        loop.measure("baseline")
        assert loop.feed.launches == 2

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

    @pytest.mark.parametrize(
        ("options", "validates", "recorded"),
        [
            # During settling; and between two stretches, like everything else that the loop does there.
            ({}, {1, 2}, 1),
            ({"length": 4}, "between the epochs", 1),
            # Within a stretch, or within the first of two: the window's steps are the third to the eighth.
            ({}, {3}, 0),
            ({}, {8}, 0),
            ({"length": 4}, {3}, 0),
        ],
    )
    def test_a_validation(self, options: dict[str, Any], validates: Any, recorded: int) -> None:
        loop = Loop(**options)
        if isinstance(validates, set):
            loop.validates = validates
        else:
            loop.validates_between = True
        assert loop.measure("baseline")[0] == ("" if recorded else "other code ran in every window")
        assert [(window["steps"], window["optimizer_steps"]) for window in loop.recorded] == [(6, 6)] * recorded
        assert loop.draws
        if not recorded and not options:
            assert loop.measure("baseline")[0] == "" and len(loop.recorded) == 1, "the next window is not affected"

    def test_starting_another_loader_is_no_part_of_a_step(self) -> None:
        """The loop waits for its workers, which go on while it starts: the window takes as long as without it."""
        loop = Loop()
        loop.starts_others = {4: 0.25}
        assert loop.measure("baseline")[0] == ""
        (window,) = loop.recorded
        assert (window["steps"], window["seconds"]) == (6, 3.0 - 0.25)

    @pytest.mark.parametrize("took", [0.25, 30.0])
    def test_nor_under_a_cached_rung(self, took: float) -> None:
        """Not even a loader that starts like a pause."""
        loop = Loop(target=0.5)
        loop.settle("device")
        loop.starts_others = {loop.training.steps + 2: took}
        assert loop.measure("device")[0] == ""
        (window,) = loop.recorded
        assert window["seconds"] == window["steps"] / 8 and loop.clock.now() > took

    def test_a_validation_in_every_window_is_part_of_the_training(self) -> None:
        loop = Loop()
        loop.validates = set(range(100))
        for _ in range(3):
            assert loop.measure("baseline")[0] == "other code ran in every window"
        assert loop.measure("baseline")[0] == ""
        assert len(loop.recorded) == 1
        assert ("warning", dict(OTHER_LOADERS)) in loop.events


class TestFewerThreads:
    """The loop as it is, with one torch thread."""

    @pytest.fixture(autouse=True)
    def three_threads(self) -> Iterator[None]:
        with torch_threads(3):
            yield

    def test_in_every_step_until_the_window_ends(self) -> None:
        loop = Loop()
        assert loop.measure("baseline")[0] == ""
        before = len(loop.threads)
        assert loop.measure(FEWER_THREADS)[0] == ""
        assert {*loop.threads[:before]} == {3}
        assert {*loop.threads[before:]} == {1}
        assert torch.get_num_threads() == 3
        plain, fewer = loop.recorded
        assert (fewer["rung"], fewer["steps"], fewer["seconds"]) == (FEWER_THREADS, plain["steps"], plain["seconds"])
        assert ("environment", {"fewer_threads": 1}) in loop.events

    def test_the_time_or_the_script_ends_within_it(self) -> None:
        for ends in (OutOfTime(), GeneratorExit()):
            measuring = Loop().windows.measure(FEWER_THREADS)
            next(measuring)
            assert torch.get_num_threads() == 1
            with pytest.raises(type(ends)):
                measuring.throw(ends)
            assert torch.get_num_threads() == 3


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


class TestNothingIsInspectedMeanwhile:
    @pytest.mark.parametrize("length", [100_000, 4])
    def test_in_a_window(self, length: int) -> None:
        """Between two stretches of it, inspection may go on."""
        loop = Loop(length=length)
        loop.measure("baseline")
        assert loop.timed == [False] * 2 + [True] * 6, "settling, then the window"
        assert not loop.feed.rung_switch.timing

    def test_it_goes_on_after_the_time_has_run_out(self) -> None:
        loop = Loop()
        measuring = loop.windows.measure("baseline")
        for _ in range(4):
            next(measuring)
        assert loop.feed.rung_switch.timing
        with pytest.raises(OutOfTime):
            measuring.throw(OutOfTime())
        assert not loop.feed.rung_switch.timing

    def test_while_the_loader_alone_is_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop, timed = Loop(), []
        native = loop.feed.take
        monkeypatch.setattr(loop.feed, "take", lambda: timed.append(loop.feed.rung_switch.timing) or native())
        loop.measure("supply")
        assert timed[-6:] == [True] * 6 and not timed[0]


class TestEndsEarly:
    """The script or the time is over within a window of several epochs: the complete ones count."""

    @pytest.mark.parametrize("ends", [OutOfTime(), GeneratorExit()], ids=lambda ends: type(ends).__name__)
    def test_in_the_middle_of_an_epoch(self, ends: BaseException) -> None:
        """Epochs of 8 batches; the loop has settled after 2. The third epoch is not over.

        The loop waits 0.75 s for each two batches, and 1 s for the first two of an epoch.
        """
        loop = Loop(length=8, target=10.0)
        loop.ends = {20: ends}
        with pytest.raises(type(ends)):
            loop.measure("baseline")
        (window,) = loop.recorded
        assert window["steps"] == 6 + 8
        assert window["evidence"]["wait_ms"] == pytest.approx(1000 * (3 * 0.75 + 1.0 + 3 * 0.75) / 14)


class TestSupply:
    def test_the_loader_alone(self) -> None:
        """The loop takes no step; the workers can make two batches per second."""
        loop = Loop()
        assert loop.measure("supply")[:2] == ("", 0)
        (window,) = loop.recorded
        assert (window["rung"], window["steps"], window["seconds"], window["optimizer_steps"]) == ("supply", 6, 3.0, 0)

    @pytest.mark.parametrize("rung", ["supply", "baseline"])
    def test_of_workers_that_deliver_at_once(self, rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Four workers in phase give four batches every 3 s: waiting for the next four is no pause."""
        monkeypatch.setitem(COSTS, "baseline", 3.0)
        loop = Loop(workers=4, step=1 / 1024)
        monkeypatch.setattr(loop.loop_side.counters, "here", lambda: Times(0.0, 0.0))
        loop.settle(rung)
        loop.feed.take()  # the window begins within a round
        assert loop.measure(rung)[0] == ""
        assert loop.recorded[-1]["seconds"] == pytest.approx(3.0 * loop.recorded[-1]["steps"] / 4, abs=0.1)

    def test_ends_early_if_the_pace_was_underestimated(self) -> None:
        loop = Loop()
        loop.steering.pace["supply"] = 1e-3
        loop.measure("supply")
        (window,) = loop.recorded
        assert window["seconds"] <= 3.0 * 1.0 + 1.0
