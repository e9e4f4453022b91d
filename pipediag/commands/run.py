"""Implement ``pipediag run``: hand over to a fresh interpreter that runs the script under its remedy."""

from __future__ import annotations

from typing import NoReturn

from ..errors import UsageError
from ..host.processes import become_runner
from ..host.runner import APPROXIMATELY, NO_PLAN
from ..host.script import Target
from ..remedy import saved


def run(target: Target, plan: str | None, approximate: bool = False) -> NoReturn:
    """Check the script and the file of its plan, if there is one, and replace this process.

    Raises:
        UsageError: there is no such script, the plan does not fit it, or it is given besides ``approximate``.
    """
    target.check()
    if plan is not None:
        if approximate:
            raise UsageError("--plan says whether JPEGs are decoded on the GPU: leave out --approximate")
        saved.read(plan).check(target.name)
    become_runner([plan or (APPROXIMATELY if approximate else NO_PLAN), *target.argv])
