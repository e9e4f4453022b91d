"""Time windows of the running loop under one rung after another.

:mod:`.climb` and :mod:`pipediag.measure.schedule` decide which window comes next, :mod:`.steering` how long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch

from ..analysis.trials.threads import threads_to_try
from ..session import CACHED, FEWER_THREADS, LONGER, PLAIN, fed_apart
from .loop_side import LoopSide, Turn
from .open_window import OpenWindow
from .settling import Settler
from .steering import OutOfTime

TOO_LARGE = "one batch is too large to be cached within the limit of 1 GiB"
OTHER_LOADERS = {
    "code": "other-loaders",
    "message": "other loaders are used between the training steps: what is done with their batches is part of a step",
    "help": "analyse a run without validation inside the epoch for cleaner shares",
}
#: Number of disturbed windows (other code ran in them) that are discarded before such windows are accepted.
_TOLERATED = 3
#: Seconds of steps that rank 0 of a job grants at a time within a window.
_AHEAD = 0.5


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads for an operation of this thread within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Windows:
    """Measures one window after another on a loop; ``recorded`` is called with the rung of every recorded window."""

    def __init__(self, loop_side: LoopSide, recorded: Callable[[str], None]) -> None:
        self.settler = Settler(loop_side)  # brings the loop into a rung's steady state before a window
        self._loop_side = loop_side
        self._steering = loop_side.steering
        self._setting = loop_side.setting
        self._clock = loop_side.clock
        self._gpu = loop_side.device.gpu()
        self._recorded = recorded
        self._thrown_away = 0

    def measure(self, rung: str) -> Turn[str]:
        """Measure one window of ``rung``; return why there is none, or ""."""
        loop_side = self._loop_side
        if rung not in (*PLAIN, FEWER_THREADS) and not fed_apart(rung):
            yield from self.settler.fill_caches()
        no_shared = rung == "worker" and loop_side.caches is not None and not loop_side.caches.shared
        if no_shared or (rung in CACHED and not loop_side.cache(rung)):
            loop_side.unavailable(rung, TOO_LARGE)
        if not self._steering.schedule.allows(rung):
            return ""
        if rung == "supply":
            return (yield from self._measure_supply())
        if rung == FEWER_THREADS:
            count = threads_to_try(self._setting.session) or 1
            self._setting.send("environment", {"fewer_threads": count})
            with torch_threads(count):
                return (yield from self._measure_loop(rung))
        return (yield from self._measure_loop(rung))

    def _measure_loop(self, rung: str) -> Turn[str]:
        steering, settled = self._steering, False
        window: OpenWindow | None = None
        try:
            while window is None or not window.full:
                if not settled:
                    trouble = yield from self.settler.settle(rung)
                    if trouble:
                        return trouble
                    window = window or self._open(rung)
                    self._announce_steps(window)
                    yield from self.settler.drop_stock(rung)
                assert window is not None, "settling opens it"
                settled = yield from self.stretch(window)
                if rung != LONGER and window.full and steering.keeps_up and window.used_up_stock:
                    steering.used_up_stock(rung)  # start again without queued batches
                    window, settled = None, False
                elif not settled:
                    steering.disturb()
                    if window.worth_keeping and 2 * window.steps >= window.wanted:
                        break  # settling again would take longer than the missing steps
        except (GeneratorExit, OutOfTime):  # the script or the time is over: keep the complete stretches
            if window is not None and window.worth_keeping:
                self.close(window)
            raise
        return self.close(window)

    def _announce_steps(self, window: OpenWindow) -> None:
        """Tell the other ranks that their next steps belong to this window."""
        left = window.wanted - window.steps
        self._loop_side.lockstep.do(window.rung, window=left, round=self._steering.schedule.round)
        # An epoch of unknown length may end at any step.
        known = self._loop_side.epochs.length is not None
        workers = self._loop_side.feed.workers
        ahead = max(2, workers, round(_AHEAD / self._steering.pace[window.rung])) if known else 1
        self._loop_side.lockstep.reserve(left, ahead)

    def _open(self, rung: str) -> OpenWindow:
        return self.opened(rung, *self._steering.window(rung, self._loop_side.source(rung).workers))

    def opened(self, rung: str, steps: int, longest: float) -> OpenWindow:
        """Open a window of ``steps`` steps that take at most ``longest`` seconds."""
        return OpenWindow(rung, steps, longest, self._loop_side, self._gpu)

    def close(self, window: OpenWindow) -> str:
        """Record the window, unless other code than the training loop ran in it; return why not, or ""."""
        evidence = window.evidence()
        if window.interrupted or (window.optimizer_steps == 0 and not self._setting.plan.inference):
            self._thrown_away += 1
            if self._thrown_away <= _TOLERATED:
                return "other code ran in every window"
            if window.interrupted:
                self._setting.send("warning", OTHER_LOADERS)
        if why := self._loop_side.lockstep.unserved(window.rung):
            self._loop_side.unavailable(window.rung, why)
            return ""
        self._record(window, evidence)
        return ""

    def stretch(self, window: OpenWindow) -> Turn[bool]:
        """Time the loop until the window is full or the epoch ends; drop a stretch whose end is not seen.

        Returns whether the loop is still in the rung's steady state.
        """
        rung, loop_side, epochs = window.rung, self._loop_side, self._loop_side.epochs
        trained, others = self._setting.training.steps, loop_side.draws_of_others
        window.start()
        began = self._clock.now()
        with loop_side.feed.rung_switch.undisturbed():
            while not window.full and not epochs.last_chance:
                batch = yield from loop_side.next_batch(rung, window)
                if batch is None:
                    window.drop()
                    return False
                window.gets()
                back = yield from loop_side.hand(batch)
                del batch  # releasing shared memory takes time, which must not count towards the next wait
                if not back:
                    window.drop()
                    return rung in CACHED
                window.count()
                self._end_in_time(window, began)
        window.interrupted |= loop_side.draws_of_others != others
        evaluates = epochs.complete and trained == self._setting.training.steps
        if evaluates and not self._setting.plan.inference:
            window.drop()  # a whole epoch without an optimizer step
        else:
            window.stop()
        return window.full or (yield from self._into_next_epoch(rung))

    def _into_next_epoch(self, rung: str) -> Turn[bool]:
        """Let the loop end its epoch and begin another, and restore the fill level of the queues.

        Unlike in training, workers continue between these epochs: the batches they add are taken out of the queues.
        Return False if the workers were restarted instead: the loop has to settle again.
        """
        loop_side, epochs = self._loop_side, self._loop_side.epochs
        serial, ready = epochs.serial, loop_side.source(rung).ready
        while epochs.serial == serial and epochs.last_chance:
            if epochs.complete:
                if (yield from loop_side.end_epoch()) and rung not in CACHED:
                    return False
            else:  # the loop is about to leave by itself
                yield from loop_side.step(rung)
        if rung not in CACHED:
            for _ in range(loop_side.source(rung).ready - ready):
                yield from loop_side.take(rung)
        return True

    def _measure_supply(self) -> Turn[str]:
        """Measure the loader alone: take and drop batches while the loop waits in one ``next()``."""
        trouble = yield from self.settler.settle("supply")
        if trouble:
            return trouble
        window = self._open("supply")
        window.start()
        began = self._clock.now()
        with self._loop_side.feed.rung_switch.undisturbed():
            while not window.full:
                delivery = yield from self._loop_side.take("supply")
                if delivery is None:
                    return "the data ended"
                window.takes(delivery)
                window.gets()
                window.count()
                self._end_in_time(window, began)
                if self._steering.is_late:
                    break
        window.stop()
        self._record(window, window.evidence())
        return ""

    def _end_in_time(self, window: OpenWindow, began: float) -> None:
        """End the window early, after a whole round of the workers, if it has run longer than allowed."""
        workers, apart = max(1, self._loop_side.source(window.rung).workers), window.left_out + window.stopped
        if self._clock.now() - began - apart > window.longest and window.steps % workers == 0:
            window.shorten()

    def _record(self, open_: OpenWindow, evidence: dict[str, float]) -> None:
        window = open_.closed(self._steering.schedule.round, evidence)
        self._steering.learn(window)
        self._setting.send("window", asdict(window))
        for stretch in open_.stretches(window.round):
            self._setting.send("stretch", vars(stretch))
        self._recorded(window.rung)
