"""Run passes over the script, each in a fresh child, until every rung has its windows.

This module imports no torch. Windows arrive while they are measured, so they are kept even if a child fails. If a
script cannot run again, the results of its first run are reported.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from .._version import __version__
from ..analysis.trials.remedy import any_kept, left_to_try
from ..analysis.words import counted
from ..errors import EXIT_BY_SIGNAL, EXIT_FAILED, NothingMeasured
from ..measure.schedule import KNOBS_SHARE, Plan
from ..session import REMEDIES, Profile, Rung, Session, fed_apart, received
from ..session.events import Pass, Tick, unmeasurable
from ..session.private import masked
from .channel import Listener, Receiver
from .connections import Job, Lines
from .endings import (
    failure,
    files_written,
    nothing_measured,
    nth,
    trains_on_other_batches,
    trouble,
    warn_of_trouble,
    words,
)
from .folders import Folders, scratch_folder
from .processes import end_child, exit_code_of, interpreter, no_orphans, signal_of, wait_quietly
from .scheduled import announce
from .script import Target
from .supervision import FAREWELL, PROLOGUE, Outcome, Progress, stacks_of

#: Maximum seconds of a later pass before its first batch, or this multiple of the first pass's if that is longer.
PROLOGUE_AGAIN, PROLOGUE_TIMES = 60.0, 4.0
MAX_PASSES = 40
#: Maximum number of rungs given up because the script failed under them; a further failure is the script's own.
MAX_EXCLUDED = 2
#: Maximum number of consecutive passes without a new window before the analysis ends.
MAX_BARREN = 2
#: Seconds that a job may continue after one of its ranks has failed: the others may wait for it for ever.
_WITHOUT_A_RANK = 8.0
#: Seconds that a launcher has to end by itself once its ranks have ended or were told to.
_SHORT_FAREWELL = 3.0
_FAILED_UNDER = "the script failed on these batches"


@dataclass
class Request:
    target: Target
    budget: float = Plan.budget
    loader: int | None = None
    workdir: str | None = None
    rungs: list[str] | None = None
    apply: float = 0.0  # seconds to measure a remedy for, in addition to the budget; 0: none is tried
    approximate: bool = False  # the remedy may decode JPEGs on the device, see Plan.approximate
    audit: float | None = None  # share of a step that the input may cost, see Plan.audit
    profile: str = ""  # file for a trace of some steps, see Plan.profile
    knobs: bool = False  # try other settings of the loader with the rest of the budget after the ladder

    @property
    def options(self) -> list[str]:
        """The options that measure the same again."""
        budget = None if self.budget == Plan.budget else f"{self.budget:g}"
        given = {"--budget": budget, "--loader": self.loader, "--workdir": self.workdir}
        return [word for name, value in given.items() if value is not None for word in (name, str(value))]


def analyze_script(request: Request, progress: Progress) -> Session:
    """Measure a script and return the session.

    ``session.script.exit_code`` is the script's own if its first run failed. A failure of a later run does not affect
    the earlier results: the code is then 0, and the warning ``later-pass-failed`` describes the failure.

    Raises:
        NothingMeasured: the script ended without error, and neither a window nor a training step was seen.
        UsageError: there is no such script.
    """
    request.target.check()
    session = Session(tool_version=__version__, began=time.perf_counter())
    session.script.argv, session.script.options = masked(request.target.argv), request.options
    job = Job(session)
    plan = Plan(
        budget=request.budget,
        loader=request.loader,
        apply=request.apply,
        approximate=request.approximate,
        knobs=KNOBS_SHARE * request.budget if request.knobs else 0.0,
        audit=request.audit,
        profile=request.profile,
    )
    if request.rungs:
        plan.rungs = request.rungs
    history: list[Outcome] = []
    folders = Folders(request.workdir)
    barren, began = 0, time.time()
    with no_orphans(), scratch_folder() as scratch:
        while True:
            windows = len(session.windows)
            outcome = one_pass(request.target, plan, job, scratch, folders.now, _patience(history), progress, began)
            _give_up(outcome, session)
            history.append(outcome)
            barren = barren + 1 if len(session.windows) == windows else 0
            following = _next(plan, outcome, session)
            if following is None and trouble(history):
                following = _elsewhere(plan, outcome, folders)
                warn_of_trouble(history, session, request.workdir, folders.now if following else "")
            elif following is not None and not _worth_it(plan, following, session, barren):
                following = None
            elif following is not None and folders.apart:
                folders.renew(following.attempt)
            if following is None or len(history) >= MAX_PASSES:
                break
            plan = following
    _acquit(session, history)
    session = job.whole()
    _close(session, history, folders, request)
    if not session.script.exit_code and not outcome.interrupted and not session.anything_seen:
        why = unmeasurable(session) or nothing_measured(history, request.budget, request.loader)
        raise NothingMeasured(why + files_written(session.script))
    return session


def _close(session: Session, history: list[Outcome], folders: Folders, request: Request) -> None:
    """Record in the session how the passes ended."""
    outcome, script = history[-1], session.script
    script.passes = len(history)
    script.exit_code = 0 if trouble(history) else outcome.exit_code
    script.error = words(outcome) if outcome.exit_code else ""
    script.wrote = [path for path in script.wrote if path != request.profile and folders.hold(path)]
    script.overwrote = [path for path in script.overwrote if path in script.wrote]
    failed = "script-failed" if outcome.exit_code else outcome.reason or "script-ended"
    session.ended = "interrupted" if outcome.interrupted else failed
    if script.exit_code and not outcome.interrupted:
        session.warn("script-failed", f"your script failed in its {nth(len(history))} run: {failure(outcome)}")
    if request.profile and session.profile is None:
        session.profile = Profile(why_not="the script ended before the ladder was complete")


def _acquit(session: Session, history: list[Outcome]) -> None:
    """Do not blame a rung for an error that the script also raised under another one, or as it is."""
    for number, outcome in enumerate(history, 1):
        rung, error = outcome.failed_under, outcome.story.error
        again = any(one.story.error == error and one.failed_under != rung for one in history)
        if rung in session.rungs and again:
            why = f"the script failed in its {nth(number)} run, and not only on these batches: {error}"
            session.rungs[rung] = Rung(rung, False, why)


def _give_up(outcome: Outcome, session: Session) -> None:
    """Give up the remedy or other loader settings if the script failed on their batches.

    No other remedy is tried then; other settings are.
    """
    rung = outcome.failed_under
    if outcome.exit_code and fed_apart(rung):
        session.rungs[rung] = Rung(rung, False, f"{_FAILED_UNDER}: {outcome.story.error}")
        outcome.exit_code = 0
        if rung in REMEDIES:
            outcome.applied = math.inf


def _next(plan: Plan, outcome: Outcome, session: Session) -> Plan | None:
    """Return the plan of the next pass, or None if another pass would add nothing."""
    if outcome.interrupted or outcome.reason in ("settled", "budget"):
        return None
    if unmeasurable(session):
        return None
    following = _repeated(plan)
    following.budget -= outcome.seconds
    following.knobs = min(following.knobs - outcome.tried, following.budget)
    following.knobs = 0.0 if following.knobs < 1.0 or any_kept(session) else following.knobs
    remedies_left = left_to_try(session, plan.approximate) is not None
    following.apply = max(0.0, following.apply - outcome.applied) if remedies_left else 0.0
    if outcome.climbed or following.budget < 1.0:
        left = max(following.budget if following.knobs else 0.0, following.apply)
        if left < 1.0:
            return None
        following.climbed, following.budget = True, left
    steps = outcome.story.optimizer_steps
    after = counted(steps, "step") if steps else counted(sum(one.draws for one in outcome.drawn), "batch", "batches")
    rest = "the changes that could help" if following.climbed else "the other stages"
    following.why = f"the script ended after {after}; running it again to measure {rest}"
    following.excluded.update({r.name: r.why_not for r in session.rungs.values() if not r.available and r.exists})
    if outcome.exit_code:
        rung = outcome.failed_under
        failures = sum(reason.startswith(_FAILED_UNDER) for reason in plan.excluded.values())
        if not rung or failures >= MAX_EXCLUDED:
            return None
        following.excluded[rung] = f"{_FAILED_UNDER}: {outcome.story.error}"
        error = outcome.story.error
        following.why = f"the script failed on {received(rung)} ({error}); running it again without them"
        return following
    if not plan.own_loops and plan.loader is None and trains_on_other_batches(outcome):
        following.own_loops = True
        following.why = "no DataLoader of torch's gives the batches; running it again to find its own loop"
        return following
    if not outcome.drawn:
        return None
    following.horizon = outcome.story.horizon or plan.horizon
    if outcome.story.target is None:
        if plan.inference or outcome.story.optimizer_steps or outcome.trainers:
            return None
        following.inference = True
        following.loader = plan.loader or max(outcome.drawn, key=lambda loader: loader.draws).ordinal
        following.why = "no optimizer stepped; running the script again to measure a loop that does not train"
    return following


def _worth_it(plan: Plan, following: Plan, session: Session, barren: int) -> bool:
    """Return whether another pass can add a window: the last one did, or the next one asks for something else.

    A script that gave no window at all is too short: the same again gives none either. One that gave some may have had
    bad luck. The first pass observes the unchanged loop before it measures, which a second one need not do.
    """
    if barren == 0 or (plan.attempt == 1 and session.observed):
        return True
    return barren <= MAX_BARREN and (bool(session.windows) or _asked(following) != _asked(plan))


def _asked(plan: Plan) -> Plan:
    """Return a pass's task without its time limits."""
    return replace(plan, attempt=0, why="", budget=0.0, knobs=float(plan.knobs > 0), apply=float(plan.apply > 0))


def _patience(history: list[Outcome]) -> float:
    """Return the maximum seconds of the next pass before its first batch. It could wait for a lock for ever."""
    return max(PROLOGUE_AGAIN, PROLOGUE_TIMES * history[0].prologue) if history else PROLOGUE


def _elsewhere(plan: Plan, outcome: Outcome, folders: Folders) -> Plan | None:
    """Return a plan to repeat a refused pass in its own folder; None if it had one, or none can be made."""
    if folders.apart or not outcome.refused or not folders.renew(plan.attempt + 1):
        return None
    again = _repeated(plan)
    again.why = f"the script could not run again where it ran first; running it in {folders.now}"
    return again


def _repeated(plan: Plan) -> Plan:
    return replace(plan, attempt=plan.attempt + 1, excluded=dict(plan.excluded))


def one_pass(
    target: Target,
    plan: Plan,
    job: Job,
    scratch: str,
    folder: str | None,
    patience: float,
    progress: Progress,
    began: float,
) -> Outcome:
    """Run the script once in ``folder``.

    Args:
        patience: maximum number of seconds before its first batch.
        began: the time at which the analysis began; files from before are the user's own.
    """
    order, stacks, members = (os.path.join(scratch, name) for name in ("order.json", "stacks.txt", "members"))
    facts: dict[str, Any] = {"parent": os.getpid(), "stacks": stacks, "members": members, "began": began}
    facts |= {"lock": os.path.join(scratch, "measured"), "plan": asdict(plan), **job.to_dict()}
    with open(order, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    reading, writing = os.pipe()
    progress(Pass(plan.attempt, plan.why), job.session)
    lines = Lines(Receiver(reading), Listener(members), plan, job, progress, patience)
    try:
        announce(order, target, folder)
        command = [*interpreter(target.flags), "child", order, str(writing), *target.argv]
        child = subprocess.Popen(command, pass_fds=[writing], cwd=folder)
        os.close(writing)
        hanging = False
        interrupted = 0
        try:
            while True:
                over = child.poll() is not None
                lines.take(0 if over else 0.1)
                progress(Tick(), lines.leader.session)
                if over:
                    break
                if lines.overdue():
                    leader = lines.leader
                    lines.signal(signal.SIGTERM)
                    end_child(child, FAREWELL)
                    leader.watch.look_at(stacks_of(stacks, leader.pid) if leader.pid else stacks)
                elif not hanging and lines.without_a_rank() > _WITHOUT_A_RANK:
                    hanging = True
                    end_child(child, _SHORT_FAREWELL)
        except KeyboardInterrupt as interrupt:
            interrupted = signal_of(interrupt)
            # A terminal interrupts a launcher too. A second interrupt would break into its own way out.
            launches = lines.signal(signal.SIGINT)
            if not (launches and wait_quietly(child, _SHORT_FAREWELL, lines.take)):
                child.send_signal(signal.SIGINT)
                if not wait_quietly(child, FAREWELL, lines.take):
                    end_child(child, 1.0)
        outcome = lines.close()
        # We may have ended it at its deadline, or because one of its ranks had failed.
        _note_end(outcome, child, interrupted, lines.was_ended, hanging)
        if outcome.exit_code and not outcome.interrupted:
            outcome.story = lines.cause(outcome.story)
    finally:
        lines.end()
    return outcome


def _note_end(
    outcome: Outcome, child: subprocess.Popen[bytes], interrupted: int, was_ended: bool, hanging: bool
) -> None:
    outcome.interrupted = interrupted or (signal.SIGINT if outcome.reason == "interrupted" else 0)
    outcome.exit_code = exit_code_of(child)
    if outcome.interrupted:
        outcome.exit_code = EXIT_BY_SIGNAL + outcome.interrupted
    elif outcome.reason or was_ended:
        # We stopped the script, so the exit code is not its own.
        outcome.exit_code = 0
    elif hanging:
        outcome.exit_code = max(child.returncode, EXIT_FAILED)
    elif child.returncode < 0:
        outcome.killed = -child.returncode
