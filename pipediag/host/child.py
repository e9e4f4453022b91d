"""The child interpreter: runs the user's script as if alone, and measures it. See :mod:`pipediag.host.entry`."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..analysis.audit.rounds import next_round as next_audit_round
from ..analysis.remedy import next_trial
from ..analysis.stopping import next_round
from ..errors import EXIT_INTERRUPTED, AnalysisOver
from ..frames import users_part
from ..session import Session
from .channel import Sender
from .hooks import Writes, on_first_iteration
from .script import NoSuchModule, Target, run

if TYPE_CHECKING:
    from ..ladder.measurement import Measurement


def main(arguments: list[str]) -> int:
    """Run the script under one plan; returns its exit code."""
    with open(arguments[0], encoding="utf-8") as file:
        order = json.load(file)
    child = Child(order, Sender(int(arguments[1])))
    return child.run(Target.of(arguments[2:]))


class Child:
    """One pass over the script."""

    def __init__(self, order: dict[str, Any], sender: Sender) -> None:
        self._order = order
        self._sender = sender
        self._stack = ExitStack()
        self._measurement: Measurement | None = None
        self._pid = os.getpid()
        self._was_interrupted = False
        self._writes = Writes(lambda path: sender.send("wrote", {"path": path}))

    def run(self, target: Target) -> int:
        signal.signal(signal.SIGINT, self._interrupted)
        error: BaseException | None = None
        try:
            with self._stack:
                self._stack.enter_context(on_first_iteration(self._begin))
                self._writes.listen()
                run(target)
        except AnalysisOver as over:
            return EXIT_INTERRUPTED if str(over) == "interrupted" else 0
        except SystemExit:  # the script's own way to end, no failure of the rung under way
            raise
        except NoSuchModule as unusable:
            print(f"pipediag: {unusable}", file=sys.stderr)
            return unusable.exit_code
        except BaseException as crash:
            error = crash
            sys.stdout.flush()
            users_part(crash)
            sys.excepthook(type(crash), crash, crash.__traceback__)
            return 1
        finally:
            self._tell_end(error)
        return 0

    def _begin(self) -> None:
        """The first loader is being iterated: torch is there, and the measurement can be set up."""
        import torch

        from ..ladder.measurement import Measurement
        from ..ladder.plan import Plan
        from ..measure.machine import environment

        session = Session.from_dict(self._order["session"])
        facts = {**environment(), "torch": torch.__version__, "cuda": torch.version.cuda}
        session.apply("environment", facts)
        self._sender.send("environment", facts)
        plan = Plan(**self._order["plan"])
        choose = next_round if plan.audit is None else partial(next_audit_round, gate=plan.audit)
        self._measurement = Measurement(plan, session, self._sender.send, choose, choose_trial=next_trial)
        self._stack.enter_context(self._writes.torch_saves())
        self._stack.enter_context(self._measurement.installed())

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked worker: torch expects it to see the interrupt
            raise KeyboardInterrupt
        if self._was_interrupted:  # a terminal and the parent both tell of one interrupt
            return
        self._was_interrupted = True
        if self._measurement is None:
            raise AnalysisOver("interrupted")
        if not self._measurement.over:
            self._measurement.finish("interrupted")

    def _tell_end(self, error: BaseException | None) -> None:
        story = self._measurement.summary() if self._measurement else {}
        if error is not None:
            story["error"] = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        self._sender.send("ended", story)
