"""Find out which rank holds up a distributed job: feed or delay some of the ranks, and time the job's step.

This is rank 0's part; :mod:`pipediag.analysis.ranks.stragglers` chooses the ranks.
"""

from __future__ import annotations

import math
from dataclasses import asdict

from ...analysis.numbers.ladder import LadderView
from ...analysis.ranks.merging import summary
from ...analysis.ranks.stragglers import next_trial
from ...analysis.ranks.trials import Change
from ...analysis.verdict import decided
from ...measure.window import window_steps
from ...session import RankTrial
from ..loop_side import LoopSide, Turn
from ..steering import OutOfTime
from ..windows import Windows
from .lockstep import Leader

#: Minimum steps before a trial is timed: every rank has then switched.
_WARM = 3
#: Trials that prove one rank's input late: two pairs, and one with as many other ranks fed, which helps nothing. So
#: three run at the pace of the loop as it is, and two at that of the fed loop.
_SLOW, _FAST = 3, 2
#: Trials of delayed steps that usually decide, at the pace of the fed loop: three pairs for each of two ranks.
_DELAYED = 12


class RankTrials:
    """The trials of one job, each sent when it is done."""

    def __init__(self, leader: Leader, loop_side: LoopSide, windows: Windows) -> None:
        self._leader = leader
        self._loop_side = loop_side
        self._windows = windows
        self._setting = loop_side.setting
        self._session = loop_side.setting.session

    @property
    def seconds(self) -> float:
        """The time that the trials need, as far as the loop's paces are known."""
        ladder = LadderView(self._session)
        if not ladder.has("baseline") or not ladder.intervened:
            return 0.0
        loses = decided(ladder.share("baseline", ladder.ceiling))
        counts = (_SLOW, _FAST) if loses else (0, _DELAYED)
        paces = ladder.ms("baseline").value / 1000, ladder.best.value / 1000
        return sum(count * pace * sum(self._steps(pace)) for count, pace in zip(counts, paces, strict=True))

    def _steps(self, pace: float) -> tuple[int, int]:
        """Return the steps before a trial and in it, given its seconds per step."""
        workers = self._loop_side.source("baseline").workers
        return max(_WARM, workers), window_steps(pace, self._loop_side.steering.target, workers)

    def run(self) -> Turn[None]:
        """Make one trial after the other until the answer is known, or the time is over."""
        try:
            while True:
                own = summary(self._leader.rank, self._session, self._leader.world_size)
                change = next_trial(self._session, [own, *dict(sorted(self._leader.notes().items())).values()])
                if change is None:
                    return
                yield from self._windows.settler.fill_caches()
                trial = yield from self._trial(change)
                if trial is None:
                    return
                self._setting.send("rank-trial", asdict(trial))
        except OutOfTime:
            pass  # keep what was measured until then
        finally:
            self._loop_side.steering.disturb()

    def _trial(self, change: Change) -> Turn[RankTrial | None]:
        """Time the job's steps under a change; return None if this rank cannot serve it."""
        windows, loop_side = self._windows, self._loop_side
        rung = "device" if 0 in change.fed else "baseline"
        treated = {"fed": [*change.fed], "delayed": [*change.delayed], "delay": change.delay_ms / 1000}
        yield from windows.settler.take_granted()
        self._leader.do("device", **treated)
        loop_side.agree()  # the other ranks switch at the same time
        if (yield from windows.settler.switch(rung)):
            return None
        pace = yield from self._settled(rung, self._steps(0.0)[0])
        window = windows.opened(rung, self._steps(pace)[1], math.inf)
        self._leader.do("device", window=window.wanted, **treated)
        self._leader.reserve(window.wanted, window.wanted)
        yield from windows.settler.drop_stock(rung)
        while not window.full:
            yield from windows.stretch(window)
        return RankTrial(
            [*change.fed],
            [*change.delayed],
            change.delay_ms,
            len(self._session.rank_trials),
            window.steps,
            window.seconds,
            self._setting.plan.attempt,
        )

    def _settled(self, rung: str, least: int) -> Turn[float]:
        """Take ``least`` steps; return the seconds per step."""
        loop_side = self._loop_side
        began, steps = loop_side.clock.now(), 0
        while steps < least:
            steps += yield from loop_side.step(rung)
        loop_side.device.synchronize()
        return (loop_side.clock.now() - began) / steps
