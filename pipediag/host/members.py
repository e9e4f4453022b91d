"""Host the processes that a script or launcher starts and that may train, as ranks of a job or by themselves.

Processes that do not train are left alone: those that load data, write logs or compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .relaunched import hosting_relaunched
from .trainers import hosting_trainers


class Members:
    """The hosted processes that this process has started.

    Attributes:
        count: their number.
    """

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1


@contextmanager
def hosting_members(words: Sequence[str], missed: Callable[[str], None]) -> Iterator[Members]:
    """Host what this process starts within the context; its members host theirs in turn.

    Args:
        words: the role of :mod:`pipediag.host.entry` in which they run, with its arguments.
        missed: called with the command of a process that trains but cannot be hosted.
    """
    members = Members()
    with hosting_relaunched(words, members.add, missed), hosting_trainers(words, members.add):
        yield members
