"""Follow rank 0 through its ladder in the other ranks of a distributed job."""

from __future__ import annotations

import math
from dataclasses import asdict

from ...analysis.ranks.merging import summary
from ...session import CACHED, REMEDIES
from ..driven import Driven
from ..loop_side import Loop, Turn
from .lockstep import CACHES, Activity, Follower, Stopped, Superseded


class Following(Driven):
    """The training loop of a rank that follows: what it does in each step is rank 0's decision.

    It measures the same windows as rank 0, with its own evidence.
    """

    def __init__(self, loop: Loop, lockstep: Follower) -> None:
        self._follower = lockstep
        super().__init__(loop, math.inf, lockstep)

    def _run(self) -> Turn[None]:
        self._announce_rungs()
        try:
            while True:
                try:
                    yield from self._do(self._follower.activity)
                except Superseded:
                    pass
        except Stopped:
            self._follower.leave(self._setting.report())
            self._setting.finish("settled")

    def _do(self, activity: Activity) -> Turn[None]:
        """Take steps of one activity for as long as they are granted."""
        rung = activity.rung_of(self._follower.rank)
        if activity.ends:
            yield from self.loop_side.end_epoch()
        if activity.prepares:
            yield from self._prepare(activity.prepares)
        if rung in REMEDIES and (self._trial is None or self._trial.rung != rung or self._trial.feed is None):
            rung = "baseline"  # this rank has no such remedy: it trains unchanged
        if rung in CACHED:
            yield from self._settler.fill_caches()
            if not self.loop_side.cache(rung):
                self._cannot_serve(rung, "its batches do not fit into the caches")
                rung = "baseline"
        self.steering.rung = rung
        if not (yield from self._switched(rung)):
            rung = "baseline"
            yield from self._switched(rung)
        if activity.window:
            yield from self._settler.drop_stock(rung)
        if activity.round is not None and rung == activity.rung:
            yield from self._measure(rung, activity.window, activity.round)
        while True:
            yield from self.loop_side.step(rung)

    def _prepare(self, what: str) -> Turn[None]:
        if what == CACHES:
            yield from self._settler.fill_caches()
            return
        self._end_trial()
        self._setting.send("applying", {"ended": "settled", "rung": what})  # this host's deadline is later then
        if not self._prepare_trial(what, self._plan.apply):
            self._follower.cannot_serve(what, "the remedy cannot be tried")

    def _measure(self, rung: str, steps: int, round_: int) -> Turn[None]:
        windows = self._windows
        self.steering.schedule.round = round_
        window = windows.opened(rung, steps, math.inf)
        try:
            while not window.full:
                if not (yield from windows.stretch(window)):
                    self.steering.disturb()
                    if not (yield from self._switched(rung)):
                        return
        except (GeneratorExit, Superseded, Stopped) as ended:
            if isinstance(ended, Superseded) and window.running:  # rank 0 has ended its window early
                window.stop()
            if window.worth_keeping:
                windows.close(window)
            raise
        windows.close(window)

    def _switched(self, rung: str) -> Turn[bool]:
        """Switch to a rung; return False if this rank cannot serve it."""
        trouble = yield from self._settler.switch(rung)
        if trouble:
            self._cannot_serve(rung, trouble)
            self.steering.disturb()
        return not trouble

    def _cannot_serve(self, rung: str, why: str) -> None:
        self.loop_side.unavailable(rung, why)
        self._follower.cannot_serve(rung, why)

    def _recorded(self, rung: str) -> None:
        super()._recorded(rung)
        if rung == "baseline":
            follower = self._follower
            follower.note(asdict(summary(follower.rank, self._session, follower.world_size)))
