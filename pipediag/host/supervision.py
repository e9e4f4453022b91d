"""Watch one process of a pass: note its events, and find out when it should have ended, and where it hangs.

Python writes the main thread's stack to a file when the parent ends it.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..frames import is_ours, is_users
from ..measure.schedule import Plan
from ..session import Loader, Session, Warning_, made_under
from ..session.events import UNMEASURABLE, Applying, Finished, FirstBatch, LoaderUse, Looking, Story, Trainer, Trying

#: Receives each event (see :mod:`pipediag.session.events`) after the session has taken it in.
Progress = Callable[[object, Session], None]

#: Minimum seconds that a script may take before its first batch, as for reading indices, tokenizing or compiling.
PROLOGUE = 300.0
#: Seconds that a child has to end by itself after it was told to stop.
FAREWELL = 10.0
#: Seconds beyond the budget after which a child that has not stopped by itself counts as hung.
OVERDUE = 15.0
#: Parts of a pass.
_LADDER, _SETTINGS, _REMEDIES = "ladder", "settings", "remedies"
#: Advice for a script that stopped asking for batches.
LONGER_BUDGET = "if single steps or batches take that long, give a longer --budget"


@dataclass
class Outcome:
    """The result of one pass."""

    exit_code: int = 0
    reason: str = ""  # why the child stopped the script; empty if the script ended by itself
    stopped: bool = False  # True if the script was stopped, for a reason or because no loader proved to train
    story: Story = field(default_factory=Story)
    seconds: float = 0.0  # of the budget: in the first pass from the first batch on, in later passes from the start
    tried: float = 0.0  # seconds of them spent on other loader settings
    applied: float = 0.0  # seconds spent on preparing and measuring the remedy
    climbed: bool = False  # True if the ladder is complete
    batches: bool = False
    interrupted: int = 0  # the signal that interrupted the pass, or 0
    killed: int = 0  # the signal that ended the script if it was not ours, or 0
    hung: float = 0.0  # seconds after which a script that asked for no more batches was ended
    stuck: str = ""  # what a script that was ended then waited for, and where; empty if unknown
    prologue: float = 0.0  # seconds until the first batch
    trainers: list[str] = field(default_factory=list)  # processes started by the script that train

    @property
    def refused(self) -> bool:
        """True if the script drew no batch, or ended with an error that shows that it cannot run twice."""
        return not self.batches or self.story.refused

    @property
    def failed_under(self) -> str:
        """The rung under which the script raised an error; empty if it raised none or the error is its own.

        An error from making a batch is its own if the batch was made as in the plain loop.
        """
        story = self.story
        if not story.rung or story.rung == "baseline" or not story.error or story.refused:
            return ""
        return "" if story.making and made_under(story.rung) == "baseline" else story.rung

    @property
    def drawn(self) -> list[LoaderUse]:
        """The loaders that gave a batch."""
        return [loader for loader in self.story.loaders if loader.draws]


class Watch:
    """The state and the deadline of one process.

    ``session`` receives the warnings of the watch. ``patience`` are the seconds before the first batch, ``started`` is
    when the pass began, None for now.
    """

    def __init__(self, plan: Plan, session: Session, patience: float = PROLOGUE, started: float | None = None) -> None:
        self.outcome = Outcome()
        self._plan, self._session = plan, session
        self._started = time.monotonic() if started is None else started
        self._first_batch: float | None = None
        self._part: tuple[str, float] | None = (_LADDER, self._started) if plan.attempt > 1 else None
        self._spent = dict.fromkeys((_LADDER, _SETTINGS, _REMEDIES), 0.0)
        self._until = self._started + max(patience, plan.budget)
        self._unmeasured = False

    def note(self, event: object) -> None:
        """Note one event; ignore those of unknown kinds."""
        now, outcome = time.monotonic(), self.outcome
        match event:
            case FirstBatch():
                self._first_batch = now
                self._part = self._part or (_LADDER, now)
                self._until = now + self._plan.budget + OVERDUE
                outcome.batches = True
                outcome.prologue = now - self._started
            case Loader():  # measuring begins; compiling and warming up may have taken long
                self._until = max(self._until, now + self._plan.budget + OVERDUE)
            case Trying(budget):
                self._turn_to(_SETTINGS, now)
                self._until = max(self._until, now + budget + OVERDUE)
                outcome.climbed = True
            case Applying(ended="", budget=budget):
                self._until = now + budget + OVERDUE
            case Applying():
                self._turn_to(_REMEDIES, now)
                self._until = now + PROLOGUE
                outcome.climbed = True
            case Warning_(code=code) if code == UNMEASURABLE:
                self._until, self._unmeasured = now + self._plan.budget + OVERDUE, True
            case Looking(seconds=seconds):
                self._until = max(self._until, now + seconds + OVERDUE)
            case Finished(reason=reason):
                self._until = now + FAREWELL
                outcome.reason = reason if reason != "no-training-loader" else ""
                outcome.stopped = True
                outcome.story = event
            case Story():
                outcome.story = event
            case Trainer(at) if at not in outcome.trainers:
                outcome.trainers.append(at)

    def hasten(self, seconds: float) -> None:
        self._until = min(self._until, time.monotonic() + seconds)

    def overdue(self) -> bool:
        """Return whether the process is past its deadline. If it was not told to stop, note that it hung."""
        if time.monotonic() <= self._until:
            return False
        if not self.outcome.stopped:
            self.outcome.reason = "budget"
            if self._unmeasured:  # it may ask for batches, and is not heard
                return True
            self.outcome.hung = time.monotonic() - self._started
            if self._first_batch is None:
                self._session.warn("hung", f"the script asked for no batch in {self.outcome.hung:.0f} s")
            else:
                self._session.warn("hung", "the script stopped asking for batches and had to be ended", LONGER_BUDGET)
        return True

    def look_at(self, stacks: str) -> None:
        """Find out from the file of its stacks what the script did when it was ended."""
        if self.outcome.stopped:
            return
        self.outcome.stuck = stuck_at(stacks)
        if self.outcome.stuck:
            self._session.warn("hung", f"when the script was ended, {self.outcome.stuck}")

    def close(self) -> None:
        """Record the seconds of each part of the pass."""
        self._turn_to("", time.monotonic())
        self.outcome.seconds = self._spent[_LADDER] + self._spent[_SETTINGS]
        self.outcome.tried, self.outcome.applied = self._spent[_SETTINGS], self._spent[_REMEDIES]

    def _turn_to(self, part: str, now: float) -> None:
        if self._part is not None:
            before, began = self._part
            self._spent[before] += now - began
        self._part = (part, now) if part else None


#: A frame of a stack as :mod:`faulthandler` writes it, innermost first.
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
#: Functions in which torch's loop waits for its workers.
_WAITING = ("_get_data", "_try_get_data", "_next_data")
_files: list[int] = []


def stacks_of(path: str, pid: int) -> str:
    """Return the file for the stacks of a process beside the child, whose own file is ``path``."""
    root, ending = os.path.splitext(path)
    return f"{root}-{pid}{ending}"


def write_stacks_on_end(path: str) -> None:
    """Let SIGTERM write the main thread's stack to ``path`` before its usual effect.

    The system gives the signal to that thread. Python 3.12 may crash if it writes the stacks of threads that run.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    faulthandler.register(signal.SIGTERM, file=file, all_threads=False, chain=True)
    _files.append(file)
    # torch ends workers with SIGTERM too.
    os.register_at_fork(after_in_child=_leave_alone)


def write_no_stacks() -> None:
    """Undo :func:`write_stacks_on_end`; the file is closed."""
    faulthandler.unregister(signal.SIGTERM)
    while _files:
        os.close(_files.pop())


def _leave_alone() -> None:
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # otherwise the script has a handler of its own by now
        faulthandler.unregister(signal.SIGTERM)


def stuck_at(path: str) -> str:
    """Return what the main thread did or waited for when it was ended, and where in the user's code; "" if unknown."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    stack = list(_FRAME.finditer(text))
    users = next((frame for frame in stack if is_users(frame["file"])), None)
    if users is None:
        return ""
    where = f"{users['file']}:{users['line']}"
    inner = stack[: stack.index(users)]
    if any(frame["function"] in _WAITING and not is_ours(frame["file"]) for frame in inner):
        return f"it waited at {where} for a batch: a DataLoader worker hangs"
    return f"it was at {where}, in {users['function']}"
