"""Run passes over the script, each in a fresh child, until every rung has its windows.

This module imports no torch. Windows arrive while they are measured, so they are kept even if a child fails. A script
may refuse to run again; the results of its first run are still reported.
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

#: Minimum seconds a script may take before its first batch: reading indices, tokenizing, compiling.
PROLOGUE = 300.0
#: The same for later passes: this many seconds, or this multiple of the first pass's time if that is longer.
PROLOGUE_AGAIN, PROLOGUE_TIMES = 60.0, 4.0
#: Seconds a child has to end by itself after it was told to stop.
FAREWELL = 10.0
#: Seconds beyond the budget after which a child that has not stopped by itself counts as hung.
OVERDUE = 15.0
MAX_PASSES = 40
#: Maximum number of rungs given up because the script failed under them; a further failure is the script's own.
MAX_EXCLUDED = 2
#: Number of optimizer steps up to which no step can be timed.
_FEW_STEPS = 2
#: Maximum number of consecutive passes without a new window before the analysis ends.
MAX_BARREN = 2
_FAILED_UNDER = "the script failed when it was fed this way"


@dataclass
class Request:
    """The user's request."""

    target: Target
    budget: float = 120.0
    loader: int | None = None
    workdir: str | None = None
    rungs: list[str] | None = None
    apply: float = 0.0  # seconds to measure a remedy for, in addition to the budget; 0: none is tried
    audit: float | None = None  # share of a step that the input may cost, see Plan.audit
    profile: str = ""  # file for a trace of some steps, see Plan.profile
    knobs: bool = False  # try other settings of the loader with the rest of the budget after the ladder


@dataclass
class Outcome:
    """The result of one pass."""

    exit_code: int = 0
    reason: str = ""  # why the child stopped the script; empty if the script ended by itself
    stopped: bool = False  # True if the script was stopped, for a reason or because no loader proved to train
    story: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0  # of the budget: in the first pass from the first batch on, in later passes from the start
    applied: float = 0.0  # seconds that a remedy was measured for
    tried: float = 0.0  # seconds of them that other settings of the loader were tried for
    climbed: bool = False  # True if the ladder is complete
    batches: bool = False
    interrupted: int = 0  # the signal that interrupted the pass, or 0
    killed: int = 0  # the signal that ended the script if it was not ours, or 0
    hung: float = 0.0  # seconds after which a script that asked for no more batches was ended
    prologue: float = 0.0  # seconds until the first batch
    trainers: list[str] = field(default_factory=list)  # processes started by the script that train

    @property
    def refused(self) -> bool:
        """True if the script drew no batch, or ended with an error that shows that it cannot run twice."""
        return not self.batches or bool(self.story.get("refused"))


def analyze_script(request: Request, progress: Progress) -> Session:
    """Measure a script and return the session.

    ``session.script.exit_code`` is the script's own if its first run failed. A failure of a later run does not affect
    the earlier results: the code is then 0, and the warning ``later-pass-failed`` describes the failure.

    Raises:
        NothingMeasured: the script ended without error, and neither a window nor a training step was seen.
        UsageError: there is no such script.
    """
    request.target.check()
    session = Session(tool_version=__version__)
    session.script.argv = request.target.argv
    plan = Plan(budget=request.budget, loader=request.loader, apply=request.apply, audit=request.audit)
    plan.profile, plan.knobs = request.profile, KNOBS_SHARE * request.budget if request.knobs else 0.0
    if request.rungs:
        plan.rungs = request.rungs
    history: list[Outcome] = []
    folders = _Folders(request.workdir)
    barren = 0
    with no_orphans(), tempfile.TemporaryDirectory(prefix="pipediag-") as scratch:
        while True:
            windows = len(session.windows)
            outcome = _one_pass(request, plan, session, scratch, folders.now, _patience(history), progress)
            if outcome.exit_code and _failed_under(outcome) == REMEDIED:
                _give_up_remedy(outcome, session)
            elif outcome.exit_code and settings_of(_failed_under(outcome) or ""):
                _give_up_settings(outcome, session)
            history.append(outcome)
            barren = barren + 1 if len(session.windows) == windows else 0
            following = _next(plan, outcome, session)
            if following is None and (trouble := _trouble(history)):
                following = _elsewhere(plan, outcome, folders)
                _tell(trouble, history, session, request.workdir, folders.now if following else "")
            elif following is not None and not _worth_it(plan, following, session, barren):
                following = None
            elif following is not None and folders.apart:
                folders.renew(following.attempt)
            if following is None or len(history) >= MAX_PASSES:
                break
            plan = following
    _close(session, history, folders, request)
    if not session.script.exit_code and not outcome.interrupted and not session.anything_seen:
        raise NothingMeasured(_nothing(history, request))
    return session


class _Folders:
    """The folders in which the passes run: ``workdir`` for all, until a pass is refused there.

    From then on each pass has its own subfolder, with links to what ``workdir`` held before the first pass. The first
    pass never has one: it may have downloaded its data.
    """

    def __init__(self, workdir: str | None) -> None:
        self.now = workdir
        self.apart = False
        self._workdir = workdir
        self._used = [workdir or ""]
        self._held = os.listdir(workdir) if workdir is not None else []

    def renew(self, attempt: int) -> bool:
        """Let the pass ``attempt`` run in its own folder; return False if none can be made."""
        if self._workdir is None:
            return False
        workdir = os.path.abspath(self._workdir)
        try:
            folder = tempfile.mkdtemp(prefix=f"pass-{attempt}-", dir=workdir)
            for name in self._held:
                os.symlink(os.path.join(workdir, name), os.path.join(folder, name))
        except OSError:
            return False
        self.now, self.apart = folder, True
        self._used.append(folder)
        return True

    def hold(self, path: str) -> bool:
        """Return whether a file that the script wrote still exists; an unnamed one has the path of its folder."""
        return any(os.path.isfile(os.path.join(folder, path)) for folder in self._used)


def _close(session: Session, history: list[Outcome], folders: _Folders, request: Request) -> None:
    """Record in the session how the passes ended."""
    outcome, script = history[-1], session.script
    script.passes = len(history)
    script.exit_code = 0 if _trouble(history) else outcome.exit_code
    script.error = _words(outcome) if outcome.exit_code else ""
    script.wrote = [path for path in script.wrote if path != request.profile and folders.hold(path)]
    session.ended = _ending(outcome)
    if script.exit_code and not outcome.interrupted:
        session.warn("script-failed", f"your script failed in its {_nth(len(history))} run: {_failure(outcome)}")
    if request.profile and session.profile is None:
        session.apply("profile", {"why_not": "the script ended before the ladder was known"})


def _ending(outcome: Outcome) -> str:
    if outcome.interrupted:
        return "interrupted"
    if outcome.exit_code:
        return "script-failed"
    return outcome.reason or "script-ended"


def _next(plan: Plan, outcome: Outcome, session: Session) -> Plan | None:
    """Return the plan of the next pass, or None if another pass would add nothing."""
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
        if plan.inference or outcome.story.get("optimizer_steps") or outcome.trainers:
            return None
        following.inference = True
        following.loader = plan.loader or max(loaders, key=lambda entry: int(entry["draws"]))["ordinal"]
    return following


def _worth_it(plan: Plan, following: Plan, session: Session, barren: int) -> bool:
    """Return whether another pass can add a window: the last one did, or the next one asks for something else.

    A script without any window gives none if asked for the same again: it is too short. One with some windows may have
    had bad luck. The first pass observes the unchanged loop before it measures; a second one need not.
    """
    if barren == 0 or (plan.attempt == 1 and session.observed):
        return True
    return barren <= MAX_BARREN and (bool(session.windows) or _asked(following) != _asked(plan))


def _asked(plan: Plan) -> dict[str, Any]:
    """Return what a pass is to do, regardless of its time."""
    return {**plan.to_dict(), "attempt": 0, "budget": 0.0, "knobs": plan.knobs > 0, "apply": plan.apply > 0}


def _patience(history: list[Outcome]) -> float:
    """Return the maximum seconds of the next pass before its first batch: one that waits for a lock would never end."""
    return max(PROLOGUE_AGAIN, PROLOGUE_TIMES * history[0].prologue) if history else PROLOGUE


def _elsewhere(plan: Plan, outcome: Outcome, folders: _Folders) -> Plan | None:
    """Return a plan to repeat a refused pass in its own folder, or None if that is impossible or already so."""
    if folders.apart or not outcome.refused or not folders.renew(plan.attempt + 1):
        return None
    return Plan(**{**plan.to_dict(), "attempt": plan.attempt + 1})


def _trouble(history: list[Outcome]) -> str:
    """Return how the last pass failed although an earlier one had not, to follow "your script"; otherwise "".

    An earlier pass that failed in the same way, after training, does not count.
    """
    *earlier, outcome = history
    if not earlier or outcome.interrupted:
        return ""
    run = f"in its {_nth(len(history))} run"
    if outcome.exit_code:
        ran_well = outcome.refused or any(not one.exit_code for one in earlier)
        return f"failed {run}: {_failure(outcome)}" if ran_well else ""
    if outcome.batches:
        return ""
    if outcome.hung:
        return f"asked for no batch {run} and was ended after {outcome.hung:.0f} s"
    return f"drew no batch {run} and ended without an error"


def _tell(trouble: str, history: list[Outcome], session: Session, workdir: str | None, again: str | None) -> None:
    """Warn about a pass that failed after others had not; ``again`` is the folder of its repetition, or ""."""
    if again:
        session.warn("later-pass-failed", f"your script {trouble}", f"it was run again in a folder of its own, {again}")
        return
    gave = sorted({window.attempt for window in session.windows}) or [1]
    passes = f"pass{'es' * (len(gave) > 1)} {', '.join(map(str, gave))}"
    kept = f" ({passes} gave what is reported)" if session.anything_seen else ""
    session.warn("later-pass-failed", f"your script {trouble}{kept}", _how_to_run_twice(history[-1], workdir))


def _how_to_run_twice(outcome: Outcome, workdir: str | None) -> str:
    if str(outcome.story.get("error", "")).startswith("EOFError"):
        return "the first run has read standard input to its end: give the script its answers as arguments"
    workdirs = "use --workdir DIR, or " if workdir is None else ""
    return f"pipediag runs a script several times where one run is too short: {workdirs}let the script run twice"


def _words(outcome: Outcome) -> str:
    """Return the script's own message about its failure, or ""."""
    return str(outcome.story.get("error") or outcome.story.get("said") or "")


def _failure(outcome: Outcome) -> str:
    """Return how the script failed, in its own words if there are any."""
    if outcome.killed:
        return f"it was killed by {signal.Signals(outcome.killed).name}"
    return _words(outcome) or f"it ended with exit code {outcome.exit_code}"


def _nth(number: int) -> str:
    """Return an ordinal in figures."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _failed_under(outcome: Outcome) -> str | None:
    """Return the rung under which the script raised an error, or None if the error is the script's own."""
    rung, story = outcome.story.get("rung"), outcome.story
    return rung if rung and rung != "baseline" and "error" in story and not story.get("refused") else None


def _give_up_remedy(outcome: Outcome, session: Session) -> None:
    """Give up the remedy, whose batches the script cannot use. The ladder is complete: no further pass is needed."""
    why = f"{_FAILED_UNDER}: {outcome.story['error']}"
    session.apply("rung", {"name": REMEDIED, "available": False, "why_not": why})
    outcome.exit_code, outcome.reason = 0, "settled"


def _give_up_settings(outcome: Outcome, session: Session) -> None:
    """Give up loader settings whose batches the script cannot use; the other settings are still tried."""
    why = f"{_FAILED_UNDER}: {outcome.story['error']}"
    session.apply("rung", {"name": _failed_under(outcome), "available": False, "why_not": why})
    outcome.exit_code = 0


def _nothing(history: list[Outcome], request: Request) -> str:
    """Return why there is nothing to judge, and what to do about it."""
    if trouble := _trouble(history):
        return (
            f"your script {trouble}. Its 1st run was too short to be measured, so it would have to run again: "
            "let it train for more batches, or let it run twice"
        )
    outcome = history[-1]
    if outcome.hung:
        return _hung(outcome)
    loaders = [entry for entry in outcome.story.get("loaders", []) if entry["draws"]]
    if outcome.trainers and not outcome.story.get("optimizer_steps"):
        return _trains_elsewhere(outcome.trainers, loaders)
    if not outcome.batches:
        return _no_batch(outcome)
    few = 0 < int(outcome.story.get("optimizer_steps", 0)) <= _FEW_STEPS
    if outcome.story.get("target") is None or (few and not outcome.stopped):
        why = _not_that_loader(request.loader, loaders) if request.loader else ""
        if why := why or _no_training_loader(outcome, loaders):
            return why
    if outcome.stopped:
        return (
            f"the budget of {request.budget:g} s ended your script before one window could be measured; "
            "give a longer --budget"
        )
    return (
        f"your script ended by itself before one window could be measured{_in_runs(history)}; "
        "let it train for more batches"
    )


def _in_runs(history: list[Outcome]) -> str:
    return f" in any of {len(history)} runs" if len(history) > 1 else ""


def _hung(outcome: Outcome) -> str:
    if not outcome.batches:
        return (
            f"your script asked for no batch in {outcome.hung:.0f} s and was ended; "
            "let it come to its training loop sooner, with its data prepared beforehand"
        )
    return (
        "your script stopped asking for batches and had to be ended before one window could be measured; "
        "if single steps or batches take that long, give a longer --budget"
    )


def _trains_elsewhere(trainers: list[str], loaders: list[dict[str, Any]]) -> str:
    saw = f"only the loader at {loaders[0]['where']}, which does not train" if loaders else "no loader"
    return (
        f"your script trains in processes that it starts itself ({', '.join(trainers)}); pipediag saw {saw}. "
        "Analyse a script that trains in its own process, as one of them does"
    )


def _no_batch(outcome: Outcome) -> str:
    if loaders := outcome.story.get("loaders"):
        return f"the loader at {loaders[0]['where']} gave no batch: its dataset is empty, or nothing was asked of it"
    if steps := outcome.story.get("optimizer_steps"):
        return (
            f"the script trained for {steps} steps and iterated no torch DataLoader: it makes its batches itself, so "
            "there is no loader to measure. Put the code that makes a batch into a Dataset to have it analysed"
        )
    return (
        "the script iterated no torch DataLoader in its own process, so there is nothing to measure. "
        "If it starts its trainers as processes of their own (torchrun, mp.spawn), "
        "analyse the script that one trainer runs"
    )


def _not_that_loader(asked: int, loaders: list[dict[str, Any]]) -> str:
    """Return why ``--loader`` cannot be followed, or ""."""
    known = ", ".join(f"{entry['ordinal']} at {entry['where']}" for entry in loaders)
    chosen = [entry for entry in loaders if entry["ordinal"] == asked]
    if not chosen:
        return f"--loader {asked}: the script iterates {len(loaders)} loader(s): {known}"
    best = max(loaders, key=lambda entry: int(entry["credits"]))
    if best["credits"] <= chosen[0]["credits"]:
        return ""
    return (
        f"--loader {asked}: hardly any optimizer step follows a batch of the loader at {chosen[0]['where']}; "
        f"the one that trains is --loader {best['ordinal']}, at {best['where']}"
    )


def _no_training_loader(outcome: Outcome, loaders: list[dict[str, Any]]) -> str:
    """Return why no loader is known to train although an optimizer stepped, or "" if that needs no explanation."""
    steps = int(outcome.story.get("optimizer_steps", 0))
    few = steps <= max(entry["credits"] for entry in loaders)
    if not steps or (few and outcome.stopped):
        return ""
    if few:
        return f"your script ended after {steps} optimizer step(s), too few to measure; let it train for more batches"
    return (
        f"the optimizer stepped {steps} times, but hardly ever on a batch that had just been drawn from a loader "
        f"({', '.join(entry['where'] for entry in loaders)}): batches that are kept in memory need no loader. "
        "If others are loaded, let the training loop itself draw them"
    )


def _one_pass(
    request: Request,
    plan: Plan,
    session: Session,
    scratch: str,
    folder: str | None,
    patience: float,
    progress: Progress,
) -> Outcome:
    """Run the script once in ``folder``; ``patience`` is the maximum number of seconds before its first batch."""
    order = os.path.join(scratch, "order.json")
    with open(order, "w", encoding="utf-8") as file:
        json.dump({"plan": plan.to_dict(), "session": session.to_dict()}, file)
    reading, writing = os.pipe()
    receiver = Receiver(reading)
    outcome = Outcome()
    try:
        child = start_child([order, str(writing), *request.target.argv], writing, folder)
        os.close(writing)
        watch = _Watch(plan, session, outcome, progress, patience)
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
            # We stopped the script, so the exit code is not its own.
            outcome.exit_code = 0
        elif child.returncode < 0:
            outcome.killed = -child.returncode
    finally:
        receiver.close()
    return outcome


class _Watch:
    """A monitor of one child: applies its events, and knows when it should have ended."""

    def __init__(
        self, plan: Plan, session: Session, outcome: Outcome, progress: Progress, patience: float = PROLOGUE
    ) -> None:
        self._plan, self._session, self._outcome, self._progress = plan, session, outcome, progress
        self._started = time.monotonic()
        self._first_batch: float | None = None
        self._ladder_over: float | None = None
        self._trial_begun: float | None = None
        self._remedy_begun: float | None = None
        self._finished = False
        self._until = self._started + max(patience, plan.budget)
        self.killed = False
        progress("pass", {"number": plan.attempt, "budget": plan.budget}, session)

    def take(self, kind: str, data: dict[str, Any]) -> None:
        now = time.monotonic()
        if kind == "first-batch":
            self._first_batch = now
            self._until = now + self._plan.budget + OVERDUE
            self._outcome.batches = True
            self._outcome.prologue = now - self._started
        elif kind == "loader":  # measuring begins; compiling and warming up may have taken long
            self._until = max(self._until, now + self._plan.budget + OVERDUE)
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
            self._outcome.stopped = True
            self._outcome.story = data
        elif kind == "trainer" and data["at"] not in self._outcome.trainers:
            self._outcome.trainers.append(data["at"])
        elif kind == "ended":
            self._outcome.story = {**self._outcome.story, **data}
        self._session.apply(kind, data)
        self._progress(kind, data, self._session)

    def overdue(self) -> bool:
        """Return whether the child's time is over; True only once."""
        if self.killed or time.monotonic() <= self._until:
            return False
        self.killed = True
        if not self._finished:
            self._outcome.reason = "budget"
            self._outcome.hung = time.monotonic() - self._started
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
