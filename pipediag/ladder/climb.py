"""Climb the ladder on one loader: choose window after window, then look at the model, the settings, and the remedies.

In a distributed job this is rank 0; the others follow, see :mod:`.follow`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from ..analysis.amortised import wants_start
from ..analysis.recommend.cheaper import worth_trying
from ..analysis.thresholds import GATE
from ..analysis.trials import making_way
from ..analysis.trials.remedy import any_kept, following, leaves_rest, left_to_try, remedy_of, reserved, under_way
from ..analysis.whatif import transfer_matters
from ..session import CACHED, Rung, Session, is_found_later
from .driven import Driven
from .loop_side import Loop, LoopSide, Turn
from .probes import modelside
from .probes.alternatives import located
from .probes.modelside import batch_steps, watch_syncs
from .probes.tensor_uses import watch_uses
from .ranks.lockstep import Leader, Lockstep
from .ranks.trials import RankTrials
from .settings_trial import SettingsTrial, proposal
from .steering import OutOfTime

NOT_ALL_JOINED = {
    "code": "ranks-missing",
    "message": "not every rank of the job takes part in the measurement: the others train unchanged",
    "help": "start all ranks through pipediag, and let each of them iterate its training loader in the same way",
}
#: Maximum time for comparing single batches, in seconds and as a share of the budget.
_COMPARE_SECONDS, _COMPARE_SHARE = 3.0, 0.05
#: Steps of the loop before anything is cached (at least one round of the workers), and their maximum time, in seconds
#: and as a share of the budget.
_OBSERVE_STEPS, _OBSERVE_SECONDS, _OBSERVE_SHARE = 4, 6.0, 0.1
#: Minimum share of the budget for the ladder, however long the first steps take, and minimum share of a remedy's time
#: for measuring it, however long preparing it takes.
_LEFT, _LEFT_FOR_REMEDY = 0.5, 0.25
#: Share of the budget that is left when the ladder may make way for remedies: before, it measures what else it can.
_LEFT_FOR_DETAILS = 0.5
#: Smallest and largest share of the budget for starts of the workers. It is the share of an epoch that a start seems to
#: take.
_LEAST_FOR_STARTS, _MOST_FOR_STARTS = 0.1, 0.5
#: Maximum seconds until a worker has tried cheaper transforms, the batches before included.
_TRYING_SECONDS = 10.0
#: Least and largest share of the budget of a distributed job for the trials of its ranks. Slow steps need more of it.
_TRIALS_SHARE, _MOST_FOR_TRIALS = 0.25, 0.5


class Climb(Driven):
    """The measurement on the training loader. ``spent`` seconds of the budget passed before that loader was known."""

    def __init__(self, loop: Loop, spent: float, lockstep: Lockstep) -> None:
        budget = loop.setting.plan.budget
        super().__init__(loop, max(budget - spent, _LEFT * budget), lockstep)
        self._compares_batches = not self._session.batch_steps

    def _run(self) -> Turn[None]:
        ended, until = "settled", self.steering.until
        if not self._plan.climbed:
            self._announce_rungs()
            if not self._session.windows and not self._session.observed:
                yield from self._observe()
            yield from start_again(self.loop_side, self._session, self._plan.budget, self._send_findings)
            if isinstance(self._lockstep, Leader):
                ended = yield from self._climb_in_job(self._lockstep, until)
            else:
                ended = yield from self._rounds(lambda: self._makes_way(until))
            yield from self._try_alternatives()
            yield from self._look_at_model()
        began = self._clock.now()
        if self._plan.apply and self._session.windows:
            yield from self._try_remedies(ended)
        if self._plan.knobs and not self._lockstep.in_job and not any_kept(self._session):
            yield from self._try_settings(until + self._clock.now() - began)  # remedies have time of their own
        self.steering.until = math.inf
        yield from self._settler.take_granted()
        self._setting.take_reports(self._lockstep.stop())
        self._setting.finish(ended)

    def _makes_way(self, until: float) -> bool:
        """Return whether the trials that follow the ladder, whose time ends at ``until``, tell more than it."""
        left, plan = until - self._clock.now(), self._plan
        if plan.apply and left < _LEFT_FOR_DETAILS * plan.budget and making_way.for_remedies(self._session):
            return True
        return left < plan.knobs and making_way.for_settings(self._session)

    def _climb_in_job(self, leader: Leader, until: float) -> Turn[str]:
        """Measure the ladder and make the trials of ranks; the time that they leave goes to the ladder again."""
        self.loop_side.agree()  # the other ranks need to know the epoch
        if not leader.all_joined():
            self._setting.send("warning", NOT_ALL_JOINED)
        trials = RankTrials(leader, self.loop_side, self._windows)

        def leave_time() -> bool:
            least, most = _TRIALS_SHARE * self._plan.budget, _MOST_FOR_TRIALS * self._plan.budget
            self.steering.until = until - min(max(least, trials.seconds), most)
            return False

        leave_time()
        ended = yield from self._rounds(leave_time)
        self.steering.until = until
        yield from trials.run()
        return (yield from self._rounds()) if ended == "budget" and self._clock.now() < until else ended

    def _observe(self) -> Turn[None]:
        """Watch the loop train unchanged, for a first answer: how long it waits, and what its workers do."""
        self._setting.send("progress", {"rung": "baseline", "round": 0})
        until = self._clock.now() + min(_OBSERVE_SECONDS, _OBSERVE_SHARE * self._plan.budget)
        steps = max(_OBSERVE_STEPS, self.feed.workers)
        with suppress(OutOfTime):  # the ladder then finds no time left
            while steps > 0 and self._clock.now() < until:
                steps -= yield from self.loop_side.step("baseline")
        self._send_findings()

    def _rounds(self, may_end: Callable[[], bool] = lambda: False) -> Turn[str]:
        """Measure window after window as the schedule asks; return why there are no more.

        After each round, ``may_end`` may end them early.
        """
        self._setting.send_first_steps()
        schedule = self.steering.schedule
        round_ = schedule.round
        try:
            while (rung := schedule.next_rung()) is not None:
                if schedule.round != round_:
                    round_ = schedule.round
                    if may_end():
                        return "budget"
                self._setting.send("progress", {"rung": rung, "round": schedule.round + 1})
                if is_found_later(rung) and rung not in self._session.rungs:
                    self.loop_side.announce(Rung(rung))
                with self.steering.under(rung):
                    failed = yield from self._measure(rung)
                self._send_findings()
                if failed and schedule.allows(rung) and schedule.failed(rung):
                    self.loop_side.unavailable(rung, failed)
        except OutOfTime:
            return "budget"
        return "settled"

    def _try_alternatives(self) -> Turn[None]:
        """Let a worker try cheaper ways for the transforms, once; see :mod:`.probes.alternatives`."""
        session, findings = self._session, self.feed.findings
        if session.alternatives or self._lockstep.in_job or not worth_trying(session):
            return
        self.steering.limit(_TRYING_SECONDS)
        self.feed.rung_switch.tries = True
        try:
            yield from self._settler.settle("baseline")
            while findings.alternatives is None:
                yield from self.loop_side.step("baseline")
        except OutOfTime:
            pass  # its workers are too slow, or the data ended
        finally:
            self.feed.rung_switch.tries = False
            self.steering.disturb()
        for one in located(findings.alternatives or [], session.links):
            self._setting.send("alternative", asdict(one))

    def _look_at_model(self) -> Turn[None]:
        """Analyze the step that is fed from the device; see :mod:`.modelside`."""
        if not modelside.wanted(self._setting) or modelside.why_not(self._setting):
            return
        self.steering.until = math.inf  # each part limits its own time
        with self.steering.under("device"):
            yield from self._settler.fill_caches()
            yield from self._settler.settle("device")
            self.steering.disturb()
            yield from modelside.look_at_model(self.loop_side)

    def _try_settings(self, until: float) -> Turn[None]:
        """Compare the loop under other loader settings with the loop as it is, in rounds of their own.

        ``until`` is when the budget ends. See :mod:`.settings_trial`.
        """
        session, seconds = self._session, min(self._plan.knobs, until - self._clock.now())
        if session.knobs is None:
            for kind, data in proposal(self.feed, session, seconds):
                self._setting.send(kind, data)
        trial = SettingsTrial(self.feed, session, seconds)
        if not trial.feeds:
            return
        self._setting.send("trying", {"budget": seconds})
        self.steering.begin_rounds(trial.schedule(), seconds)
        self.steering.limit(seconds)
        try:
            for rung, feed in trial.feeds.items():
                self.loop_side.serve(rung, feed)
                yield from self._begin(rung)
                self._setting.send("knobs", asdict(trial.started(rung)))
            yield from self._rounds()
        except OutOfTime:
            pass  # keep what was measured until then
        finally:
            trial.close()
            for rung in trial.feeds:
                self.loop_side.dismiss(rung)

    def _try_remedies(self, ended: str) -> Turn[None]:
        session, until = self._session, self._clock.now() + self._plan.apply
        rung, begins = left_to_try(session, self._plan.approximate), under_way(session) is None
        while rung is not None:
            self.steering.until = math.inf  # a trial in the workers is not limited by the budget
            self._setting.send("applying", {"ended": ended, "rung": rung})
            if begins:
                begins = False
                self._device.forget_peak()
                yield from self._settler.settle("baseline")
                self._peak = self._device.peak_bytes()
            left = until - self._clock.now()
            yield from self._try_remedy(rung, left / (1 + len(reserved(session, rung))), left)
            rung = following(session, rung) if self._clock.now() < until else None

    def _try_remedy(self, rung: str, seconds: float, at_most: float) -> Turn[None]:
        """Compare the loop under one remedy with the loop as it is, in rounds of their own.

        Preparing it counts towards its ``seconds``. As long as it tells nothing yet or seems to pay, its rounds may
        take ``at_most`` seconds, and a share of them however long preparing took.
        """
        began, begins = self._clock.now(), remedy_of(self._session, rung) is None
        yield from self._settler.take_granted()
        self._lockstep.do("baseline", prepares=rung)
        self.loop_side.agree()  # the other ranks prepare it at the same time
        if not self._prepare_trial(rung, seconds):
            return
        prepared = self._clock.now()
        least = prepared + _LEFT_FOR_REMEDY * seconds
        own, until = max(began + seconds, least), max(began + at_most, least)
        self.steering.begin_rounds(self._setting.trial_schedule(rung, begins), own - prepared)
        try:
            if rung not in self.steering.pace:
                yield from self._begin(rung)
            left = max(until - self._clock.now(), _LEFT_FOR_REMEDY * seconds)
            self._setting.send("applying", {"budget": left})
            self.steering.limit(left)
            yield from self._rounds(lambda: self._clock.now() > own and leaves_rest(self._session, rung))
        finally:
            self._end_trial()

    def _begin(self, rung: str) -> Turn[None]:
        """Start the workers of a separate source; their startup does not count as pace."""
        with self.steering.under(rung):
            yield from self._settler.settle(rung)
        self.steering.forget(rung)

    def _measure(self, rung: str) -> Turn[str]:
        """Measure a window of ``rung`` and its side measurements; return why there is none, or ""."""
        trouble = yield from self._windows.measure(rung)
        if trouble or not self.steering.schedule.allows(rung):
            self.steering.disturb()
            return trouble
        if rung in CACHED:
            yield from self._watch_uses()
        if rung == "host" and self._plan.audit is not None and self._session.syncs is None:
            self.steering.disturb()
            found = yield from watch_syncs(self.loop_side, self.steering.pace["host"])
            self._setting.send("syncs", asdict(found))
        if rung == "device" and self._compares_batches:
            self._compares_batches = False
            self.steering.disturb()
            seconds = min(_COMPARE_SECONDS, _COMPARE_SHARE * self._plan.budget)
            for one in (yield from batch_steps(self.loop_side, self.steering.pace["device"], seconds)):
                self._setting.send("batch-step", one)
        return ""

    def _watch_uses(self) -> Turn[None]:
        """Watch how the loop uses each tensor of a batch, once, if the copy to the device may matter."""
        session = self._session
        facts = session.batch
        if facts is None or facts.unwatched or facts.autocast is not None:
            return
        asked = self._plan.audit is not None and "host" in session.measured()
        if not asked and not transfer_matters(session, GATE / 2):
            return
        self.steering.disturb()
        yield from watch_uses(self.loop_side, facts)
        self._setting.send("batch", asdict(facts))


def start_again(loop_side: LoopSide, session: Session, budget: float, send: Callable[[], None]) -> Turn[None]:
    """Start the workers again, as each epoch of the script does, until the cost of that is known or not worth more.

    The first start of a process also imports modules and reads what later ones find ready, and long epochs show no
    other one. Here the data ends early: the loop, fed as it is, takes the batches requested so far, the workers end,
    and new ones start; the loop's own epoch goes on. The ranks of a job restart their workers together at the ends of
    epochs instead. ``send`` sends what was found.
    """
    feed, clock, spent = loop_side.feed, loop_side.clock, 0.0
    startups = feed.findings.startups
    with suppress(OutOfTime):
        while startups and not loop_side.lockstep.in_job:
            send()
            share = wants_start(session)
            allowed = budget * min(_MOST_FOR_STARTS, max(_LEAST_FOR_STARTS, share)) if share else 0.0
            if spent + startups[-1].seconds + startups[-1].shutdown > allowed or not feed.end_data():
                return
            began, seen = clock.now(), len(startups)
            with feed.rung_switch.undisturbed():
                while len(startups) == seen:
                    delivery = yield from loop_side.take("baseline")
                    if delivery is not None:
                        yield from loop_side.hand(delivery.batch)
            spent += clock.now() - began
    send()
