"""Measure a process that the script or a launcher has started for training, beside the child. See :mod:`.hosting`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from ..errors import AnalysisOver
from ..lifeline import end_with_starter
from ..measure.own_rank import in_a_job, own_rank
from .channel import connected
from .child import Child, leave, read_order
from .folders import locked
from .script import Target
from .standard_streams import keep_printing
from .supervision import stacks_of, write_stacks_on_end


def main(arguments: list[str]) -> int:
    """Run a rank's script under the plan of the pass; return its exit code."""
    starter, path, *target = arguments
    member = Member(path, int(starter))
    keep_printing()
    return member.run(Target.of(target))


def host(arguments: list[str], function: Callable[[], Any]) -> Any:
    """Call the function of a process that trains, and measure what it does."""
    member = Member(arguments[1], os.getppid())
    try:
        return member.measure(function)
    except AnalysisOver as over:
        sys.exit(leave(over))


class Member(Child):
    """One process beside the child. It has a connection of its own to the parent, and ends with its launcher.

    ``path`` is the order of the pass, ``starter`` the launcher, which may have ended before this process got so far.
    """

    def __init__(self, path: str, starter: int) -> None:
        order = read_order(path)
        end_with_starter(starter)
        write_stacks_on_end(stacks_of(order["stacks"], os.getpid()))
        super().__init__(order, connected(order["members"]), self._takes_part)
        self._lock: int | None = None
        self._introduce()

    def _introduce(self) -> None:
        self._sender.send("member", {"pid": os.getpid(), "rank": own_rank()})

    def _takes_part(self) -> bool:
        """Return whether this process is measured: every rank of a job is, but only one of independent processes."""
        self._introduce()  # the process group may exist by now
        if in_a_job():
            return True
        if self._lock is None:  # another independent process holds it while it is measured
            self._lock = os.open(self._order["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return locked(self._lock)
