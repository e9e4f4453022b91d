"""Implement ``pipediag run``: hand over to a fresh interpreter that runs the script under its remedy."""

from __future__ import annotations

import os
from typing import NoReturn

from ..errors import UsageError
from ..host.processes import become_runner
from ..host.runner import APPROXIMATELY, NO_PLAN
from ..host.script import Target
from ..remedy import saved_plan


def run(target: Target, plan: str | None, approximate: bool, cache_dir: str | None) -> NoReturn:
    """Check the script and its plan, if there is one, and replace this process.

    Raises:
        UsageError: there is no such script, the plan does not fit it or is given with ``approximate``, or ``cache_dir``
            is given with a plan that keeps no samples.
    """
    target.check()
    if plan is not None:
        if approximate:
            raise UsageError("--plan says whether JPEGs are decoded on the GPU: leave out --approximate")
        known = saved_plan.read(plan)
        known.check(target.name)
        if cache_dir is not None and not known.caches:
            raise UsageError("the plan keeps no samples: leave out --cache-dir")
    folder = NO_PLAN if cache_dir is None else os.path.abspath(cache_dir)
    become_runner([plan or (APPROXIMATELY if approximate else NO_PLAN), folder, *target.argv], target.flags)
