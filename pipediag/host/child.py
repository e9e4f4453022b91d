"""Run the user's script in the child interpreter as if it ran alone, and measure it. See :mod:`pipediag.host.entry`."""

from __future__ import annotations

import atexit
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import util
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from ..analysis.audit import next_round as next_audit_round
from ..analysis.stopping import next_round
from ..analysis.trials.remedy import next_trial
from ..clock import time
from ..errors import EXIT_INTERRUPTED, EXIT_OK, AnalysisOver, analysis_over
from ..frames import ended_in, in_one_line, raised_by_ours, traceback_of
from ..lifeline import end_with
from ..loop.iterators import IteratorHook, is_iterated_by_script
from ..measure.machine import descriptors_left
from ..measure.own_rank import in_a_job, own_rank
from ..session import Session
from ..session.events import UNMEASURABLE, Story
from .channel import Sender, connected
from .exceptions import cause_of, dropped_by_python, raised_in_threads, script_hook
from .hooks import Writes, before_ray_trains, on_backward, on_first_iteration, on_optimizer_step
from .hosting import hosting_members
from .own_loops import OwnLoops, marked
from .script import NoSuchModule, Target, compiled, run, script_aside
from .standard_streams import flush, keep_printing, tell
from .supervision import write_no_stacks, write_stacks_on_end

if TYPE_CHECKING:
    from ..ladder.measurement import Measurement

T = TypeVar("T")
#: Errors that show that a script cannot run twice, not that it cannot use its batches: its output exists already, its
#: input is exhausted, its lock or port is taken.
_REFUSALS = (FileExistsError, EOFError, BlockingIOError)
_REFUSING_CODES = (errno.EEXIST, errno.ENOTEMPTY, errno.EADDRINUSE)
#: A script that has trained for this long without a loader has none: steps, and seconds or the budget if shorter.
_NO_LOADER_STEPS, _NO_LOADER_SECONDS, _LEAST_SECONDS = 20, 15.0, 5.0
#: Depth of calls that measuring needs at least; a script may have set less. Descriptors that it needs: caches, queues
#: and the loader's own.
_FRAMES, _DESCRIPTORS = 1000, 64
_RAY_TRAINS = (
    "Ray's servers start the processes that train; call pipediag.diagnose(loader, step) in the function they run"
)


def main(arguments: list[str]) -> int:
    """Run the script under one plan; return its exit code."""
    order = read_order(arguments[0])
    end_with(order["parent"])
    write_stacks_on_end(order["stacks"])
    child = Child(order, Sender(int(arguments[1]), order["members"]))
    keep_printing()
    return child.run(Target.of(arguments[2:]))


def read_order(path: str) -> dict[str, Any]:
    """Return the parent's order for one pass, with the ``path`` that members read it from."""
    with open(path, encoding="utf-8") as file:
        return {**json.load(file), "path": path}


class Child:
    """One pass over the script, in the child itself or in a process that it started for training.

    ``may_measure`` is called when a loader is iterated; the process is not measured until it returns True.
    """

    process = 0  # the one that is measured, or may be

    def __init__(self, order: dict[str, Any], sender: Sender, may_measure: Callable[[], bool] = lambda: True) -> None:
        Child.process = os.getpid()
        self._order = order
        self._sender = sender
        self._may_measure = may_measure
        self._stack = ExitStack()
        self._until_loader = ExitStack()
        self._measurement: Measurement | None = None
        self._own_loops = OwnLoops() if order["plan"]["own_loops"] else None
        self._trained = {"steps": 0, "backward": 0}  # before the first loader is iterated
        self._first_step: float | None = None
        self._was_interrupted = False
        self._over: AnalysisOver | None = None  # as raised where it does not reach the main thread
        self._writes = Writes(lambda path, old: sender.send("wrote", {"path": path, "overwrote": old}), order["began"])

    def run(self, target: Target) -> int:
        """Run a script and show its error as Python would; return its exit code."""
        try:
            self.measure(partial(run, target, compiled if self._own_loops is None else marked))
        except AnalysisOver as over:
            return leave(over)
        except NoSuchModule as unusable:
            tell(f"pipediag: {unusable}")
            return unusable.exit_code
        except SystemExit:
            raise
        except BaseException as crash:
            flush()
            script_hook()(type(crash), crash, traceback_of(crash))
            return 1
        return 0

    def measure(self, function: Callable[[], T]) -> T:
        """Call a function, measure what it does, and send how it ended. Its exceptions propagate.

        Raises:
            AnalysisOver: the measurement is complete, or was interrupted.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._interrupted)
            self._stack.enter_context(raised_in_threads(AnalysisOver, self._over_elsewhere))
            self._stack.enter_context(dropped_by_python(AnalysisOver, self._was_dropped))
            os.register_at_fork(after_in_child=self._leave_interrupts_to_python)
        ending: dict[str, Any] = {}
        sender = self._sender
        try:
            return ended_in(self._watching(), function)
        except AnalysisOver:
            raise
        except SystemExit as leaving:  # the script's own way to end, not a failure of the current rung
            code = leaving.code
            said = code.strip() if isinstance(code, str) else ""
            exit_code = code if isinstance(code, int) else int(code is not None)
            ending = {"said": "".join(said.splitlines()[-1:]), "exit_code": exit_code}
            raise
        except NoSuchModule as unusable:
            ending = {"said": str(unusable)}
            raise
        except BaseException as crash:
            refused = isinstance(crash, _REFUSALS) or (isinstance(crash, OSError) and crash.errno in _REFUSING_CODES)
            ending = {"error": in_one_line(cause_of(crash)), "making": raised_by_ours(crash), "refused": refused}
            raise
        finally:
            story = Story(optimizer_steps=self._trained["steps"] or self._trained["backward"])
            if self._measurement is not None:
                with suppress(Exception):  # it may fail as measuring did
                    story = self._measurement.conclude()
            sender.send("ended", asdict(replace(story, **ending)))

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Wait for the first loader, and measure from then on, within the context."""
        sender = self._sender
        with self._stack:
            self._stack.enter_context(on_first_iteration(self._begin, self._iterates))
            self._stack.enter_context(self._until_loader)
            self._until_loader.enter_context(before_ray_trains(self._trains_far_away))
            stepped = partial(self._trained_without_loader, "steps")
            self._until_loader.enter_context(on_optimizer_step(stepped, self._trained_in_a_fork))
            self._until_loader.enter_context(on_backward(partial(self._trained_without_loader, "backward")))
            if self._own_loops is not None:
                self._stack.enter_context(self._own_loops.watched())
                self._stack.enter_context(on_optimizer_step(self._own_loops.stepped))
                self._stack.enter_context(on_backward(self._own_loops.stepped))
            words = ["member", str(os.getpid()), self._order["path"]]
            self._stack.enter_context(hosting_members(words, lambda at: sender.send("trainer", {"at": at})))
            self._writes.listen()
            yield

    def _trained_without_loader(self, what: str) -> None:
        """End a script that trains without a DataLoader: there is nothing to measure."""
        now = time.monotonic()
        self._trained[what] += 1
        if self._first_step is None:
            self._first_step = now
        seconds = max(_LEAST_SECONDS, min(_NO_LOADER_SECONDS, self._order["plan"]["budget"]))
        if self._trained[what] >= _NO_LOADER_STEPS and now - self._first_step > seconds:
            raise analysis_over("no-loader")

    def _trained_in_a_fork(self) -> None:
        """Tell the parent that a forked process trains, unless that is hosted itself."""
        if Child.process != os.getpid():
            sender = connected(self._order["members"])
            sender.send("trainer", {"at": "by os.fork() or a pool of multiprocessing"})
            sender.send("ended", asdict(Story()))
            sender.close()

    def _iterates(self, loader: Any) -> bool:
        """Return whether the measurement begins now that a loader is iterated."""
        if is_iterated_by_script(loader):
            return False
        self._until_loader.close()
        return self._may_measure()

    def _begin(self) -> IteratorHook | None:
        """Set up the measurement when the first loader is iterated: torch is imported by then.

        If this process has no room for it, such as memory or descriptors, the script trains on without.
        """
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _FRAMES))
        try:
            if (left := descriptors_left()) < _DESCRIPTORS:
                raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}, {left} more allowed")
            with script_aside(), ExitStack() as stack:
                self._set_up(stack)
                self._stack.enter_context(stack.pop_all())
        except Exception as error:
            self._measurement = None
            self._cannot_measure(f"it leaves no room for measuring ({in_one_line(error)}), so your script trained on")
            if getattr(error, "errno", None) == errno.EMFILE:  # the script may need these two descriptors
                write_no_stacks()
                self._sender.close()
        return None if self._measurement is None else self._measurement.hook

    def _trains_far_away(self) -> None:
        self._cannot_measure(_RAY_TRAINS, "rank 0 gets the diagnosis of the job")
        raise analysis_over("ray")

    def _cannot_measure(self, why: str, help: str = "let it run without that limit") -> None:
        self._sender.send("warning", {"code": UNMEASURABLE, "message": f"nothing was measured: {why}", "help": help})

    def _set_up(self, stack: ExitStack) -> None:
        import torch

        from ..ladder.measurement import Measurement
        from ..measure.machine import environment
        from ..measure.schedule import Plan

        rank = own_rank()
        known = self._order["session"] if rank is None else self._order["sessions"].get(str(rank))
        session = Session.from_dict(known or self._order["fresh"])
        facts = {**environment(), "torch": torch.__version__, "cuda": torch.version.cuda}
        session.environment.update(facts)
        self._sender.send("environment", facts)
        plan = Plan(**self._order["plan"])
        choose = next_round if plan.audit is None else partial(next_audit_round, gate=plan.audit)
        self._measurement = Measurement(plan, session, self._sender.send, choose, choose_trial=next_trial)
        stack.enter_context(self._writes.torch_saves())
        stack.enter_context(self._measurement.installed())

    def _over_elsewhere(self, over: AnalysisOver) -> None:
        """End the main thread too, which may be waiting for the batches of the thread that has ended."""
        self._over = over
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _was_dropped(self, over: AnalysisOver) -> None:
        """Raise it in the main thread once more."""
        self._was_interrupted = False
        self._over_elsewhere(over)

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        if self._was_interrupted:  # the terminal and the parent both send the same interrupt
            return
        self._was_interrupted = True
        if self._over is not None:
            raise self._over
        if self._measurement is None:
            raise analysis_over("interrupted")
        if not self._measurement.over:
            self._measurement.finish("interrupted")

    def _leave_interrupts_to_python(self) -> None:
        """Let a forked worker see the interrupt, as torch expects."""
        if signal.getsignal(signal.SIGINT) == self._interrupted:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def leave(over: AnalysisOver) -> int:
    """Return the exit code of a process that the analysis has stopped; end it now if it is a rank of a job.

    The other ranks wait in their collectives until it has gone. Taking down torch and its process group would keep them
    waiting for seconds.
    """
    code = EXIT_INTERRUPTED if over.reason == "interrupted" else EXIT_OK
    if not in_a_job():
        return code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    util._exit_function()  # type: ignore[attr-defined]
    flush()
    os._exit(code)
