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
from ..ladder.plan import Plan
from ..session import Session
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


@dataclass
class Outcome:
    """How one pass ended."""

    exit_code: int = 0
    reason: str = ""  # why the child stopped the script; empty when the script ended by itself
    story: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0  # from the first batch on
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
    plan = Plan(budget=request.budget, loader=request.loader)
    if request.rungs:
        plan.rungs = request.rungs
    barren = 0
    with no_orphans(), tempfile.TemporaryDirectory(prefix="pipediag-") as folder:
        while True:
            windows = len(session.windows)
            outcome = _one_pass(request, plan, session, folder, progress)
            session.script.passes += 1
            session.script.exit_code = outcome.exit_code
            barren = barren + 1 if len(session.windows) == windows else 0
            session.ended = _ending(outcome)
            next_plan = _next(plan, outcome, session)
            if next_plan is None or barren > MAX_BARREN or session.script.passes >= MAX_PASSES:
                break
            plan = next_plan
    session.script.wrote = [path for path in session.script.wrote if _is_there(path, request.workdir)]
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
    left = plan.budget - outcome.seconds
    if outcome.interrupted or outcome.reason in ("settled", "budget") or left < 1.0:
        return None
    following = Plan(**{**plan.to_dict(), "attempt": plan.attempt + 1, "budget": left})
    following.excluded.update({r.name: r.why_not for r in session.rungs.values() if not r.available and r.exists})
    rung = outcome.story.get("rung")
    if outcome.exit_code:
        failures = sum(reason.startswith(_FAILED_UNDER) for reason in plan.excluded.values())
        if not rung or rung == "baseline" or "error" not in outcome.story or failures >= MAX_EXCLUDED:
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
        self._finished: float | None = None
        self.killed = False
        progress("pass", {"number": plan.attempt, "budget": plan.budget}, session)

    def take(self, kind: str, data: dict[str, Any]) -> None:
        now = time.monotonic()
        if kind == "first-batch":
            self._first_batch = now
            self._outcome.batches = True
        elif kind == "finished":
            self._finished = now
            self._outcome.reason = data["reason"] if data["reason"] != "no-training-loader" else ""
            self._outcome.story = data
        elif kind == "ended":
            self._outcome.story = {**self._outcome.story, **data}
        self._session.apply(kind, data)
        self._progress(kind, data, self._session)

    def overdue(self) -> bool:
        """Whether the child has had all the time it may have; true once."""
        now = time.monotonic()
        if self.killed:
            return False
        if self._finished is not None:
            self.killed = now - self._finished > FAREWELL
        elif self._first_batch is not None:
            self.killed = now - self._first_batch > self._plan.budget + OVERDUE
            if self.killed:
                self._outcome.reason = "budget"
                self._session.warn(
                    "hung",
                    "the script stopped asking for batches and had to be ended",
                    "if single steps or batches take that long, give a longer --budget",
                )
        else:
            self.killed = now - self._started > max(PROLOGUE, self._plan.budget)
            if self.killed:
                self._outcome.reason = "budget"
                self._session.warn("hung", f"no batch was asked for in {now - self._started:.0f} s", "")
        return self.killed

    def close(self) -> None:
        begun = self._first_batch if self._plan.attempt == 1 else self._started
        self._outcome.seconds = time.monotonic() - begun if begun is not None else 0.0
