"""Run the user's script in the child interpreter as if alone, and measure it. See :mod:`pipediag.host.entry`."""

from __future__ import annotations

import errno
import inspect
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from ..analysis.audit.rounds import next_round as next_audit_round
from ..analysis.remedy import next_trial
from ..analysis.stopping import next_round
from ..errors import EXIT_INTERRUPTED, AnalysisOver
from ..frames import is_ours, users_part
from ..session import Session
from .channel import Sender
from .hooks import Writes, on_first_iteration, on_optimizer_step, when_imported
from .script import NoSuchModule, Target, run

if TYPE_CHECKING:
    from ..ladder.measurement import Measurement

#: Errors that show that a script cannot run twice, rather than that it cannot use its batches: its output exists
#: already, its input is exhausted, its lock or port is taken.
_REFUSALS = (FileExistsError, EOFError, BlockingIOError)
_REFUSING_CODES = (errno.EEXIST, errno.ENOTEMPTY, errno.EADDRINUSE)
#: A script that has trained for so many steps and seconds, or for the budget if that is shorter, has no loader.
_NO_LOADER_STEPS, _NO_LOADER_SECONDS, _LEAST_SECONDS = 20, 60.0, 5.0
#: Maximum number of functions of a process's target that are searched for training.
_LOOKED_THROUGH = 200
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, "<frozen")


def main(arguments: list[str]) -> int:
    """Run the script under one plan; return its exit code."""
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
        self._until_loader = ExitStack()
        self._measurement: Measurement | None = None
        self._steps = 0  # of optimizers, before the first loader is iterated
        self._first_step = 0.0
        self._pid = os.getpid()
        self._was_interrupted = False
        self._writes = Writes(lambda path: sender.send("wrote", {"path": path}))

    def run(self, target: Target) -> int:
        signal.signal(signal.SIGINT, self._interrupted)
        error: BaseException | None = None
        said = ""
        try:
            with self._stack:
                self._stack.enter_context(on_first_iteration(self._begin))
                self._stack.enter_context(self._until_loader)
                self._until_loader.enter_context(on_optimizer_step(self._stepped_without_loader))
                self._stack.enter_context(_trainers_told(lambda at: self._sender.send("trainer", {"at": at})))
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
            sys.stdout.flush()
            users_part(crash)
            sys.excepthook(type(crash), crash, crash.__traceback__)
            return 1
        finally:
            self._tell_end(error, said)
        return 0

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
        if self._was_interrupted:  # the terminal and the parent both send the same interrupt
            return
        self._was_interrupted = True
        if self._measurement is None:
            raise AnalysisOver("interrupted")
        if not self._measurement.over:
            self._measurement.finish("interrupted")

    def _tell_end(self, error: BaseException | None, said: str) -> None:
        """Send how the script ended: by ``error``, or with its own message on standard error."""
        story: dict[str, Any] = {"optimizer_steps": self._steps}
        if self._measurement is not None:
            story = self._measurement.conclude()
        if said:
            story["said"] = said.strip().splitlines()[-1]
        if error is not None:
            story["error"] = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
            story["refused"] = isinstance(error, _REFUSALS) or getattr(error, "errno", None) in _REFUSING_CODES
        self._sender.send("ended", story)


@contextmanager
def _trainers_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Report function and place of every ``multiprocessing`` process that the script starts for training.

    Whether a process trains is read from its code, since processes are also started for loading, logging and
    prediction.
    """
    patched: list[tuple[Any, Any]] = []

    def patch(module: ModuleType) -> None:
        process_class = module.BaseProcess
        native = process_class.start

        def start(self: Any) -> None:
            trainer = _trainer_in(self)  # before it starts: the process then forgets its target
            native(self)
            if trainer is not None:
                code = trainer.__code__
                tell(f"{trainer.__name__}, {os.path.basename(code.co_filename)}:{code.co_firstlineno}")

        process_class.start = start
        patched.append((process_class, native))

    with when_imported("multiprocessing.process", patch):
        try:
            yield
        finally:
            for process_class, native in patched:
                process_class.start = native


def _trainer_in(process: Any) -> FunctionType | None:
    """Return the script's own function that a process will run, if it trains."""
    target = getattr(process, "_target", None) or type(process).run
    if getattr(target, "__module__", "") == "torch.multiprocessing.spawn":  # runs the first of its arguments
        target = process._args[0]
    owner = type(getattr(target, "__self__", process))
    function = _users_function(target)
    return function if function is not None and _trains(function, owner) else None


def _users_function(obj: Any) -> FunctionType | None:
    """Return the function behind a callable, or None if it is not the script's own: libraries are not searched."""
    if isinstance(obj, partial):
        obj = obj.func
    if isinstance(obj, (MethodType, staticmethod, classmethod)):
        obj = obj.__func__
    if not isinstance(obj, FunctionType):
        return None
    function = inspect.unwrap(obj)
    if not isinstance(function, FunctionType):
        return None
    file = function.__code__.co_filename
    library = "site-packages" in file or "dist-packages" in file or file.startswith(_LIBRARIES) or is_ours(file)
    return None if library else function


def _trains(function: FunctionType, owner: type) -> bool:
    """Return whether the function uses the name ``backward``, itself or in script functions that it names.

    ``owner`` is the class whose other methods it may call.
    """
    left, seen = [function], {function}
    while left:
        one = left.pop()
        names = one.__code__.co_names
        if "backward" in names:
            return True
        called = [one.__globals__.get(name) for name in names]
        holders = [owner, *(holder for holder in called if isinstance(holder, (type, ModuleType)))]
        called += [vars(holder).get(name) for holder in holders for name in names]
        for callee in map(_users_function, called):
            if callee is not None and callee not in seen and len(seen) < _LOOKED_THROUGH:
                seen.add(callee)
                left.append(callee)
    return False
