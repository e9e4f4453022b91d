"""Implement ``pipediag run``: run the user's script as if alone, with its training loader under the remedy.

Nothing is measured, and there is no parent: this interpreter has replaced the command's process, so that signals,
terminal and exit code are the script's own. See :mod:`pipediag.host.entry`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event
from typing import Any

from ..errors import PipediagError, PlanRefused, RunOver
from ..frames import ended_in, in_one_line
from ..loop.iterators import IteratorHook
from ..measure.own_rank import own_rank
from ..remedy import saved_plan
from ..report.terminal import printable
from .exceptions import raised_in_threads, script_hook
from .hooks import on_first_iteration
from .hosting import hosting_members
from .script import NoSuchModule, Target, run, script_aside
from .standard_streams import flush, tell

#: Arguments instead of a plan's file: find out what can move, without or with the decoding of JPEGs. The first one also
#: stands for no folder of samples.
NO_PLAN, APPROXIMATELY = "-", "-approximate"


def main(arguments: list[str]) -> int:
    """Run the script; return its exit code. Its exceptions propagate, and Python shows them."""
    found = Event()
    try:
        ended_in(_remedied(arguments[:2], found), partial(run, Target.of(arguments[2:])))
    except (RunOver, PlanRefused, NoSuchModule) as error:
        return _print_error(error)
    except SystemExit as ended:
        if ended.code:
            raise
    except BaseException:
        sys.excepthook = script_hook()  # hides our frames
        raise
    if not found.is_set():
        say("nothing was moved: the script iterated no torch DataLoader in its own process")
    return 0


def host(arguments: list[str], function: Callable[[], Any]) -> Any:
    """Call the function of a process that trains, with its training loader under the remedy."""
    try:
        return ended_in(_remedied(arguments, Event()), function)
    except (RunOver, PlanRefused) as error:
        sys.exit(_print_error(error))


@contextmanager
def _remedied(arguments: list[str], found: Event) -> Iterator[None]:
    """Put the training loader of this process, and of those that it starts for training, under the remedy.

    Args:
        arguments: the plan's file and the folder for samples, or what stands for their absence.
        found: set once this process iterates a loader or starts a process that may.

    Raises:
        PlanRefused: the file is not a plan of this version.
    """
    file, folder = arguments
    plan = None if file in (NO_PLAN, APPROXIMATELY) else saved_plan.read(file)
    with ExitStack() as stack:

        def begin() -> IteratorHook | None:
            found.set()
            cache_dir = None if folder == NO_PLAN else folder
            try:
                with script_aside():
                    from .rerouting import Rerouting

                    rerouting = Rerouting(plan, say, warn, file == APPROXIMATELY, cache_dir)
                    stack.enter_context(rerouting.installed())
                return rerouting.hook
            except Exception as error:  # such as a missing torchvision: the script trains without us
                warn(f"nothing is moved, the script trains plainly: {in_one_line(error)}")
                return None

        missed = "nothing is moved in a process that another Python runs: "
        stack.enter_context(hosting_members(["runner", *arguments], lambda command: warn(missed + command), found.set))
        stack.enter_context(on_first_iteration(begin))
        stack.enter_context(raised_in_threads(RunOver, lambda over: os._exit(_print_error(over))))
        yield


def say(text: str) -> None:
    """Print one line for the user on standard error, in a job only from the first rank."""
    if not own_rank():
        warn(text)


def warn(text: str) -> None:
    """Print one line about a problem, with the rank if this process is not the first of a job."""
    rank = own_rank()
    tell(printable(f"pipediag: rank {rank}: {text}" if rank else f"pipediag: {text}"))


def _print_error(error: PipediagError | RunOver) -> int:
    flush()
    warn(str(error))
    return error.exit_code
