"""Implement ``pipediag run``: hand over to a fresh interpreter that runs the script under its remedy."""

from __future__ import annotations

from typing import NoReturn

from ..host.processes import become_runner
from ..host.runner import NO_PLAN
from ..host.script import Target
from ..remedy import saved


def run(target: Target, plan: str | None) -> NoReturn:
    """Check the script and the file of its plan, if there is one, and replace this process.

    Raises:
        UsageError: there is no such script, or the plan does not fit it.
    """
    target.check()
    if plan is not None:
        saved.read(plan).check(target.name)
    become_runner([plan or NO_PLAN, *target.argv])
