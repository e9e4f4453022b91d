"""Implement ``pipediag run``: run the user's script as if alone, with its training loader under the remedy, unmeasured.

There is no parent: this interpreter has replaced the command's process, so that signals, terminal and exit code are the
script's own. See :mod:`pipediag.host.entry`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

from ..errors import PipediagError, PlanRefused, RunOver
from ..frames import users_part
from ..remedy import saved
from .hooks import on_first_iteration
from .script import NoSuchModule, Target, run

#: Arguments in place of a plan's file: find out what can move, without or with the decoding of JPEGs. The first also
#: stands in place of a folder for samples.
NO_PLAN, APPROXIMATELY = "-", "-approximate"


def main(arguments: list[str]) -> int:
    """Run the script; return its exit code. Its exceptions propagate and are shown as Python would show them."""
    file, folder, target = arguments[0], arguments[1], Target.of(arguments[2:])
    try:
        plan = None
        if file not in (NO_PLAN, APPROXIMATELY):
            plan = saved.read(file)
            plan.check(target.name)
        with _traceback_of_the_users():
            _run(target, plan, file == APPROXIMATELY, None if folder == NO_PLAN else folder)
    except RunOver as over:
        return _print_error(over.reason)
    except (PlanRefused, NoSuchModule) as error:
        return _print_error(error)
    return 0


def _run(target: Target, plan: saved.SavedPlan | None, approximate: bool, cache_dir: str | None) -> None:
    iterated = False
    with ExitStack() as stack:

        def begin() -> None:
            from .rerouting import Rerouting

            nonlocal iterated
            iterated = True
            stack.enter_context(Rerouting(plan, say, approximate, cache_dir).installed())

        stack.enter_context(on_first_iteration(begin))
        run(target)
    if not iterated:
        say("nothing was moved: the script iterated no torch DataLoader in its own process")


def say(text: str) -> None:
    """Print one line for the user on standard error."""
    print(f"pipediag: {text}", file=sys.stderr, flush=True)


def _print_error(error: PipediagError) -> int:
    sys.stdout.flush()
    say(str(error))
    return error.exit_code


@contextmanager
def _traceback_of_the_users() -> Iterator[None]:
    """Hide the frames that started the script from tracebacks of exceptions raised within the context."""
    try:
        yield
    except (SystemExit, RunOver, NoSuchModule):
        raise
    except BaseException:
        show = sys.excepthook

        def show_users_part(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
            users_part(error.with_traceback(tb))
            show(kind, error, error.__traceback__)

        sys.excepthook = show_users_part
        raise
