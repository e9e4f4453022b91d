"""Run the user's script in the child interpreter as if alone, and measure it. See :mod:`pipediag.host.entry`."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..analysis.audit.rounds import next_round as next_audit_round
from ..analysis.remedy import next_trial
from ..analysis.stopping import next_round
from ..errors import EXIT_INTERRUPTED, AnalysisOver
from ..frames import in_one_line, raised_by_ours, users_part
from ..lifeline import end_with
from ..session import Session
from ..session.events import Story
from .channel import Sender
from .hooks import Writes, on_first_iteration, on_optimizer_step
from .script import NoSuchModule, Target, run
from .stacks import write_stacks_on_end
from .standard_streams import keep_printing
from .trainers import reporting_trainers

if TYPE_CHECKING:
    from ..ladder.measurement import Measurement

#: Errors that show that a script cannot run twice, rather than that it cannot use its batches: its output exists
#: already, its input is exhausted, its lock or port is taken.
_REFUSALS = (FileExistsError, EOFError, BlockingIOError)
_REFUSING_CODES = (errno.EEXIST, errno.ENOTEMPTY, errno.EADDRINUSE)
#: A script that has trained for so many steps and seconds, or for the budget if that is shorter, has no loader.
_NO_LOADER_STEPS, _NO_LOADER_SECONDS, _LEAST_SECONDS = 20, 60.0, 5.0


def main(arguments: list[str]) -> int:
    """Run the script under one plan; return its exit code."""
    with open(arguments[0], encoding="utf-8") as file:
        order = json.load(file)
    end_with(order["parent"])
    write_stacks_on_end(order["stacks"])
    child = Child(order, Sender(int(arguments[1])))
    keep_printing()
    return child.run(Target.of(arguments[2:]))


class Child:
    """One pass over the script."""

    def __init__(self, order: dict[str, Any], sender: Sender) -> None:
        self._order = order
        self._sender = sender
        self._stack = ExitStack()
        self._until_loader = ExitStack()
        self._measurement: Measurement | None = None
        self._steps = 0  # of optimizers, before the first loader is iterated
        self._first_step = 0.0
        self._pid = os.getpid()
        self._was_interrupted = False
        self._while_making = False  # True if the script's error came out of a loader
        self._writes = Writes(self._send_file, order["began"])

    def run(self, target: Target) -> int:
        signal.signal(signal.SIGINT, self._interrupted)
        error: BaseException | None = None
        said = ""
        try:
            with self._stack:
                self._stack.enter_context(on_first_iteration(self._begin))
                self._stack.enter_context(self._until_loader)
                self._until_loader.enter_context(on_optimizer_step(self._stepped_without_loader))
                self._stack.enter_context(reporting_trainers(lambda at: self._sender.send("trainer", {"at": at})))
                self._writes.listen()
                run(target)
        except AnalysisOver as over:
            return EXIT_INTERRUPTED if str(over) == "interrupted" else 0
        except SystemExit as leaving:  # the script's own way to end, not a failure of the current rung
            said = leaving.code if isinstance(leaving.code, str) else ""
            raise
        except NoSuchModule as unusable:
            said = str(unusable)
            print(f"pipediag: {unusable}", file=sys.stderr)
            return unusable.exit_code
        except BaseException as crash:
            error = crash
            self._while_making = raised_by_ours(crash)
            sys.stdout.flush()
            users_part(crash)
            sys.excepthook(type(crash), crash, crash.__traceback__)
            return 1
        finally:
            self._send_end(error, said)
        return 0

    def _send_file(self, path: str, overwrote: bool) -> None:
        self._sender.send("wrote", {"path": path, "overwrote": overwrote})

    def _stepped_without_loader(self) -> None:
        """End a script that trains, but from no DataLoader: there is nothing to wait for."""
        now = time.monotonic()
        self._steps += 1
        if self._steps == 1:
            self._first_step = now
        seconds = max(_LEAST_SECONDS, min(_NO_LOADER_SECONDS, self._order["plan"]["budget"]))
        if self._steps >= _NO_LOADER_STEPS and now - self._first_step > seconds:
            raise AnalysisOver("no-loader")

    def _begin(self) -> None:
        """Set up the measurement when the first loader is iterated: torch is imported by then."""
        self._until_loader.close()
        import torch

        from ..ladder.measurement import Measurement
        from ..ladder.plan import Plan
        from ..measure.machine import environment

        session = Session.from_dict(self._order["session"])
        facts = {**environment(), "torch": torch.__version__, "cuda": torch.version.cuda}
        session.environment.update(facts)
        self._sender.send("environment", facts)
        plan = Plan(**self._order["plan"])
        choose = next_round if plan.audit is None else partial(next_audit_round, gate=plan.audit)
        self._measurement = Measurement(plan, session, self._sender.send, choose, choose_trial=next_trial)
        self._stack.enter_context(self._writes.torch_saves())
        self._stack.enter_context(self._measurement.installed())

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked worker: torch expects it to see the interrupt
            raise KeyboardInterrupt
        if self._was_interrupted:  # the terminal and the parent both send the same interrupt
            return
        self._was_interrupted = True
        if self._measurement is None:
            raise AnalysisOver("interrupted")
        if not self._measurement.over:
            self._measurement.finish("interrupted")

    def _send_end(self, error: BaseException | None, said: str) -> None:
        """Send how the script ended: by ``error``, or with its own message on standard error."""
        story = Story(optimizer_steps=self._steps) if self._measurement is None else self._measurement.conclude()
        if said.strip():
            story.said = said.strip().splitlines()[-1]
        if error is not None:
            story.error, story.making = in_one_line(_origin(error)), self._while_making
            story.refused = isinstance(error, _REFUSALS) or getattr(error, "errno", None) in _REFUSING_CODES
        self._sender.send("ended", asdict(story))


def _origin(error: BaseException) -> BaseException:
    """Return the error that says which signal killed a worker, where torch raises another from it."""
    cause = error.__cause__
    return cause if cause is not None and "exited unexpectedly" in str(error) else error
