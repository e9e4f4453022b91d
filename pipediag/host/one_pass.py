"""Run one pass over the script in a fresh child, take in what its processes send, and end it at its deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

from ..errors import EXIT_BY_SIGNAL, EXIT_FAILED
from ..ladder.plan import Plan
from ..session.events import Pass, Tick
from .inside.channel import Listener, Receiver
from .processes import end_child, exit_code_of, interpreter, signal_of, wait_quietly
from .ranks.lines import Job, Lines
from .ranks.scheduled import announce
from .script import Target
from .stacks import stacks_of
from .watch import FAREWELL, Outcome, Progress

#: Seconds that a job may continue after one of its ranks has failed: the others may wait for it for ever.
_WITHOUT_A_RANK = 8.0
#: Seconds that a launcher has to end by itself once its ranks have ended or were told to.
_SHORT_FAREWELL = 3.0


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
    facts |= {"lock": os.path.join(scratch, "measured"), "plan": plan.to_dict(), **job.to_dict()}
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
                    _end_all(child, lines, stacks)
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
        _note_end(outcome, child, interrupted, lines.was_ended, hanging)
        if outcome.exit_code and not outcome.interrupted:
            outcome.story = lines.cause(outcome.story)
    finally:
        lines.end()
    return outcome


def _end_all(child: subprocess.Popen[bytes], lines: Lines, stacks: str) -> None:
    """End the child and all it has started, and find out where the leading process was."""
    leader = lines.leader
    lines.signal(signal.SIGTERM)
    end_child(child, FAREWELL)
    leader.watch.look_at(stacks_of(stacks, leader.pid) if leader.pid else stacks)


def _note_end(
    outcome: Outcome, child: subprocess.Popen[bytes], interrupted: int, was_ended: bool, hanging: bool
) -> None:
    """Record how the child ended.

    Args:
        was_ended: it was ended at its deadline.
        hanging: it was ended because one of its ranks had failed.
    """
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
