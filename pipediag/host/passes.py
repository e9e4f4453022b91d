"""The parent: passes over the script, each in a fresh child, until every rung has its windows.

Imports no torch. Windows arrive while they are measured, so whatever becomes of a child, they are kept.
"""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .._version import __version__
from ..errors import NothingMeasured
from ..ladder.plan import KNOBS_SHARE, Plan
from ..session import REMEDIED, Session, settings_of
from .channel import Receiver
from .processes import Terminated, end_child, exit_code_of, no_orphans, start_child, wait_quietly
from .script import Target

Progress = Callable[[str, dict[str, Any], Session], None]

#: Seconds a script may take before its first batch, at least: reading indices, tokenising, compiling.
PROLOGUE = 300.0
#: Seconds a child has for its own farewell once it was told to stop.
FAREWELL = 10.0
#: Seconds after which a child that should have stopped by itself is taken to hang.
OVERDUE = 15.0
MAX_PASSES = 40
#: Rungs given up because the script failed under them; a further failure is the script's own.
MAX_EXCLUDED = 2
#: Fresh passes that may add nothing before the analysis ends.
MAX_BARREN = 2
_FAILED_UNDER = "the script failed when it was fed this way"


@dataclass
class Request:
    """What the user asked for."""

    target: Target
    budget: float = 120.0
    loader: int | None = None
    workdir: str | None = None
    rungs: list[str] | None = None
    apply: float = 0.0  # seconds to measure a remedy for, beside the budget; 0: none is tried
    audit: float | None = None  # share of a step that the input may cost, see Plan.audit
    profile: str = ""  # the file for a trace of some steps, see Plan.profile
    knobs: bool = False  # try other settings of the loader with what the ladder leaves of the budget


@dataclass
class Outcome:
    """How one pass ended."""

    exit_code: int = 0
    reason: str = ""  # why the child stopped the script; empty when the script ended by itself
    story: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0  # of the budget, from the first batch on
    applied: float = 0.0  # seconds that a remedy was measured for
    tried: float = 0.0  # seconds of them that other settings of the loader were tried for
    climbed: bool = False  # whether the ladder came to its end
    batches: bool = False
    interrupted: int = 0  # the signal that did


def analyze_script(request: Request, progress: Progress) -> Session:
    """Measure a script and return the session; ``session.script.exit_code`` is the script's own.

    Raises:
        NothingMeasured: the script ended without error, and not one window could be measured.
        UsageError: there is no such script.
    """
    request.target.check()
    session = Session(tool_version=__version__)
    session.script.argv = request.target.argv
    plan = Plan(budget=request.budget, loader=request.loader, apply=request.apply, audit=request.audit)
    plan.profile, plan.knobs = request.profile, KNOBS_SHARE * request.budget if request.knobs else 0.0
    if request.rungs:
        plan.rungs = request.rungs
    barren = 0
    with no_orphans(), tempfile.TemporaryDirectory(prefix="pipediag-") as folder:
        while True:
            windows = len(session.windows)
            outcome = _one_pass(request, plan, session, folder, progress)
            if outcome.exit_code and _failed_under(outcome) == REMEDIED:
                _give_up_remedy(outcome, session)
            elif outcome.exit_code and settings_of(_failed_under(outcome) or ""):
                _give_up_settings(outcome, session)
            session.script.passes += 1
            session.script.exit_code = outcome.exit_code
            session.script.error = outcome.story.get("error", "") if outcome.exit_code else ""
            barren = barren + 1 if len(session.windows) == windows else 0
            session.ended = _ending(outcome)
            next_plan = _next(plan, outcome, session)
            if next_plan is None or barren > MAX_BARREN or session.script.passes >= MAX_PASSES:
                break
            plan = next_plan
    wrote = [path for path in session.script.wrote if path != request.profile]
    session.script.wrote = [path for path in wrote if _is_there(path, request.workdir)]
    if request.profile and session.profile is None:
        session.apply("profile", {"why_not": "the script ended before the ladder was known"})
    if outcome.exit_code == 0 and not session.windows:
        raise NothingMeasured(_nothing(outcome, plan))
    return session


def _is_there(path: str, workdir: str | None) -> bool:
    """Whether a file that the script wrote outlived it; scratch files are nobody's concern."""
    return os.path.exists(os.path.join(workdir or "", path))


def _ending(outcome: Outcome) -> str:
    if outcome.interrupted:
        return "interrupted"
    if outcome.exit_code:
        return "script-failed"
    return outcome.reason or "script-ended"


def _next(plan: Plan, outcome: Outcome, session: Session) -> Plan | None:
    """The plan of a further pass, or None when there is nothing more to be had."""
    if outcome.interrupted or outcome.reason in ("settled", "budget"):
        return None
    following = Plan(**{**plan.to_dict(), "attempt": plan.attempt + 1})
    following.budget -= outcome.seconds
    following.knobs = min(following.knobs - outcome.tried, following.budget)
    following.knobs = following.knobs if following.knobs >= 1.0 else 0.0
    following.apply -= outcome.applied
    if outcome.climbed or following.budget < 1.0:
        left = max(following.budget if following.knobs else 0.0, following.apply)
        if left < 1.0:
            return None
        following.climbed, following.budget = True, left
    following.excluded.update({r.name: r.why_not for r in session.rungs.values() if not r.available and r.exists})
    if outcome.exit_code:
        rung = _failed_under(outcome)
        failures = sum(reason.startswith(_FAILED_UNDER) for reason in plan.excluded.values())
        if rung is None or failures >= MAX_EXCLUDED:
            return None
        following.excluded[rung] = f"{_FAILED_UNDER}: {outcome.story['error']}"
        return following
    loaders = [entry for entry in outcome.story.get("loaders", []) if entry["draws"]]
    if not loaders:
        return None
    following.horizon = outcome.story.get("horizon") or plan.horizon
    if outcome.story.get("target") is None:
        if plan.inference or outcome.story.get("optimizer_steps"):
            return None
        following.inference = True
        following.loader = plan.loader or max(loaders, key=lambda entry: int(entry["draws"]))["ordinal"]
    return following


def _failed_under(outcome: Outcome) -> str | None:
    """The rung that the script raised an error under; None where that is the script's own."""
    rung = outcome.story.get("rung")
    return rung if rung and rung != "baseline" and "error" in outcome.story else None


def _give_up_remedy(outcome: Outcome, session: Session) -> None:
    """The script cannot do with the remedy's batches. The ladder is known by then: no further pass is needed."""
    why = f"{_FAILED_UNDER}: {outcome.story['error']}"
    session.apply("rung", {"name": REMEDIED, "available": False, "why_not": why})
    outcome.exit_code, outcome.reason = 0, "settled"


def _give_up_settings(outcome: Outcome, session: Session) -> None:
    """The script cannot do with the batches of a loader that is set otherwise; what else is to be tried may go on."""
    why = f"{_FAILED_UNDER}: {outcome.story['error']}"
    session.apply("rung", {"name": _failed_under(outcome), "available": False, "why_not": why})
    outcome.exit_code = 0


def _nothing(outcome: Outcome, plan: Plan) -> str:
    if not outcome.batches:
        return (
            "the script iterated no torch DataLoader in its own process, so there is nothing to measure. "
            "If it starts its trainers as processes of their own (torchrun, mp.spawn), "
            "analyse the script that one trainer runs"
        )
    loaders = outcome.story.get("loaders", [])
    if plan.loader and all(entry["ordinal"] != plan.loader for entry in loaders):
        return f"--loader {plan.loader}: the script iterates {len(loaders)} loader(s)"
    return (
        "the script ended before one window could be measured; let it train for more batches, or give a longer --budget"
    )


def _one_pass(request: Request, plan: Plan, session: Session, folder: str, progress: Progress) -> Outcome:
    order = os.path.join(folder, "order.json")
    with open(order, "w", encoding="utf-8") as file:
        json.dump({"plan": plan.to_dict(), "session": session.to_dict()}, file)
    reading, writing = os.pipe()
    receiver = Receiver(reading)
    outcome = Outcome()
    try:
        child = start_child([order, str(writing), *request.target.argv], writing, request.workdir)
        os.close(writing)
        watch = _Watch(plan, session, outcome, progress)
        try:
            while True:
                over = child.poll() is not None
                select.select([receiver.fd], [], [], 0 if over else 0.1)
                for kind, data in receiver.events():
                    watch.take(kind, data)
                if over:
                    break
                if watch.overdue():
                    end_child(child, FAREWELL)
        except KeyboardInterrupt as interrupt:
            outcome.interrupted = signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT
            child.send_signal(signal.SIGINT)
            if not wait_quietly(child, FAREWELL):
                end_child(child, 1.0)
            for kind, data in receiver.events():
                watch.take(kind, data)
        watch.close()
        outcome.exit_code = exit_code_of(child)
        if outcome.reason == "interrupted" and not outcome.interrupted:
            outcome.interrupted = signal.SIGINT
        if outcome.interrupted:
            outcome.exit_code = 128 + outcome.interrupted
        elif outcome.reason or watch.killed:
            # The stop was ours, and so is how the process ended.
            outcome.exit_code = 0
    finally:
        receiver.close()
    return outcome


class _Watch:
    """Follows one child: takes in its events and knows when it should have ended."""

    def __init__(self, plan: Plan, session: Session, outcome: Outcome, progress: Progress) -> None:
        self._plan, self._session, self._outcome, self._progress = plan, session, outcome, progress
        self._started = time.monotonic()
        self._first_batch: float | None = None
        self._ladder_over: float | None = None
        self._trial_begun: float | None = None
        self._remedy_begun: float | None = None
        self._finished = False
        self._until = self._started + max(PROLOGUE, plan.budget)
        self.killed = False
        progress("pass", {"number": plan.attempt, "budget": plan.budget}, session)

    def take(self, kind: str, data: dict[str, Any]) -> None:
        now = time.monotonic()
        if kind == "first-batch":
            self._first_batch = now
            self._until = now + self._plan.budget + OVERDUE
            self._outcome.batches = True
        elif kind == "trying":
            self._trial_begun = now
            self._until = max(self._until, now + data["budget"] + OVERDUE)
            self._outcome.climbed = True
        elif kind == "applying" and "ended" in data:
            self._ladder_over = now
            self._until = now + PROLOGUE
            self._outcome.climbed = True
        elif kind == "applying":
            self._remedy_begun = now
            self._until = now + data["budget"] + OVERDUE
        elif kind == "looking":
            self._until = max(self._until, now + data["seconds"] + OVERDUE)
        elif kind == "finished":
            self._finished = True
            self._until = now + FAREWELL
            self._outcome.reason = data["reason"] if data["reason"] != "no-training-loader" else ""
            self._outcome.story = data
        elif kind == "ended":
            self._outcome.story = {**self._outcome.story, **data}
        self._session.apply(kind, data)
        self._progress(kind, data, self._session)

    def overdue(self) -> bool:
        """Whether the child has had all the time it may have; true once."""
        if self.killed or time.monotonic() <= self._until:
            return False
        self.killed = True
        if not self._finished:
            self._outcome.reason = "budget"
            self._session.warn("hung", *self._what_hung())
        return True

    def _what_hung(self) -> tuple[str, str]:
        if self._first_batch is None:
            return f"no batch was asked for in {time.monotonic() - self._started:.0f} s", ""
        return (
            "the script stopped asking for batches and had to be ended",
            "if single steps or batches take that long, give a longer --budget",
        )

    def close(self) -> None:
        now = time.monotonic()
        begun = self._first_batch if self._plan.attempt == 1 else self._started
        self._outcome.seconds = (self._ladder_over or now) - begun if begun is not None else 0.0
        self._outcome.tried = (self._ladder_over or now) - self._trial_begun if self._trial_begun is not None else 0.0
        self._outcome.applied = now - self._remedy_begun if self._remedy_begun is not None else 0.0
