"""``pipediag run``: the user's script as if alone, its training loader under the remedy, and nothing measured.

There is no parent: this interpreter has taken the command's place, so that signals, terminal and exit code are the
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

#: In the place of a plan's file: there is none, and what can be moved is to be found out.
NO_PLAN = "-"


def main(arguments: list[str]) -> int:
    """Run the script; returns its exit code. Whatever it raises comes out, and is shown as Python would show it."""
    file, target = arguments[0], Target.of(arguments[1:])
    try:
        plan = None
        if file != NO_PLAN:
            plan = saved.read(file)
            plan.check(target.name)
        with _traceback_of_the_users():
            _run(target, plan)
    except RunOver as over:
        return _told(over.reason)
    except (PlanRefused, NoSuchModule) as error:
        return _told(error)
    return 0


def _run(target: Target, plan: saved.SavedPlan | None) -> None:
    with ExitStack() as stack:

        def begin() -> None:
            from .rerouting import Rerouting

            stack.enter_context(Rerouting(plan, say).installed())

        stack.enter_context(on_first_iteration(begin))
        run(target)


def say(text: str) -> None:
    """One line for the user, beside what the script prints."""
    print(f"pipediag: {text}", file=sys.stderr, flush=True)


def _told(error: PipediagError) -> int:
    sys.stdout.flush()
    say(str(error))
    return error.exit_code


@contextmanager
def _traceback_of_the_users() -> Iterator[None]:
    """What is raised inside is shown without the frames that started the script, by whoever shows it."""
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
