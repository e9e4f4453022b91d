"""Implement ``pipediag run``: run the user's script as if alone, with its training loader under the remedy, unmeasured.

There is no parent: this interpreter has replaced the command's process, so that signals, terminal and exit code are the
script's own. See :mod:`pipediag.host.entry`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import PipediagError, PlanRefused, RunOver
from ..measure.own_rank import own_rank
from ..remedy import saved
from .hooks import on_first_iteration
from .members import Members, hosting_members
from .script import NoSuchModule, Target, run
from .threads import raised_in_threads
from .tracebacks import script_hook

#: Arguments in place of a plan's file: find out what can move, without or with the decoding of JPEGs. The first also
#: stands in place of a folder for samples.
NO_PLAN, APPROXIMATELY = "-", "-approximate"


def main(arguments: list[str]) -> int:
    """Run the script; return its exit code. Its exceptions propagate and are shown as Python would show them."""
    try:
        with _traceback_of_the_users(), _remedied(arguments[:2]) as work:
            run(Target.of(arguments[2:]))
    except RunOver as over:
        return _print_error(over.reason)
    except (PlanRefused, NoSuchModule) as error:
        return _print_error(error)
    if not work.iterated and not work.members.count:
        say("nothing was moved: the script iterated no torch DataLoader in its own process")
    return 0


def host(arguments: list[str], function: Callable[[], Any]) -> Any:
    """Call the function of a process that trains, with its training loader under the remedy."""
    try:
        with _remedied(arguments):
            return function()
    except RunOver as over:
        sys.exit(_print_error(over.reason))
    except PlanRefused as error:
        sys.exit(_print_error(error))


@dataclass
class _Work:
    """What has happened in this process: whether it iterated a loader, and the processes that it has started."""

    members: Members
    iterated: bool = False


@contextmanager
def _remedied(arguments: list[str]) -> Iterator[_Work]:
    """Put the training loader of this process, and of those that it starts for training, under the remedy.

    Args:
        arguments: the plan's file and the folder for samples, or what stands in place of them.

    Raises:
        PlanRefused: the file is not a plan of this version.
    """
    file, folder = arguments
    plan = None if file in (NO_PLAN, APPROXIMATELY) else saved.read(file)
    with ExitStack() as stack:
        members = stack.enter_context(hosting_members(["runner", *arguments], _warn_of_missed))
        work = _Work(members)

        def begin() -> None:
            from .rerouting import Rerouting

            work.iterated = True
            cache_dir = None if folder == NO_PLAN else folder
            rerouting = Rerouting(plan, say, warn, file == APPROXIMATELY, cache_dir)
            stack.enter_context(rerouting.installed())

        stack.enter_context(on_first_iteration(begin))
        stack.enter_context(raised_in_threads(RunOver, lambda over: os._exit(_print_error(over.reason))))
        yield work


def _warn_of_missed(command: str) -> None:
    warn(f"nothing is moved in a process that another Python runs: {command}")


def say(text: str) -> None:
    """Print one line for the user on standard error; of the ranks of a job, only the first does."""
    if not own_rank():
        _print(text)


def warn(text: str) -> None:
    """Print one line about what went wrong, with the rank if this process is not the first of a job."""
    rank = own_rank()
    _print(f"rank {rank}: {text}" if rank else text)


def _print(text: str) -> None:
    print(f"pipediag: {text}", file=sys.stderr, flush=True)


def _print_error(error: PipediagError) -> int:
    sys.stdout.flush()
    warn(str(error))
    return error.exit_code


@contextmanager
def _traceback_of_the_users() -> Iterator[None]:
    """Hide the frames that started the script from tracebacks of exceptions raised within the context."""
    try:
        yield
    except (SystemExit, RunOver, NoSuchModule):
        raise
    except BaseException:
        sys.excepthook = script_hook()
        raise
