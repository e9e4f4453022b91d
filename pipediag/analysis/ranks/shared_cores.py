"""Find the ranks of a job that share cores, and warn if they start more processes than they have cores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...session import Rank, Session, Warning_
from ..words import counted

_RANGE = "[0-9]{1,9}(-[0-9]{1,9})?"
_RANGES = re.compile(f"{_RANGE}(,{_RANGE})*")


@dataclass(frozen=True)
class Group:
    """Ranks that share ``cores`` of one host; 0 if their number is unknown."""

    ranks: list[Rank]
    cores: float

    @property
    def processes(self) -> int:
        """The training processes and their workers."""
        return len(self.ranks) + self.workers

    @property
    def workers(self) -> int:
        return sum(rank.workers for rank in self.ranks)


def groups(ranks: Iterable[Rank]) -> list[Group]:
    """Return the ranks in groups that share cores: on one host, with a core in common.

    If the cores' numbers are unknown, ranks are assumed to share all cores unless the host has enough for each.
    """
    hosts: dict[str, list[Rank]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank)
    found = list[Group]()
    for on_host in hosts.values():
        numbers = {rank.affinity: _ranges(rank.affinity) for rank in on_host}
        if all(numbers.values()):
            found += _overlapping(on_host, numbers)
        elif sum(rank.cores for rank in on_host) > max(rank.cpus for rank in on_host):
            found.append(Group(on_host, max(rank.cores for rank in on_host)))
        else:
            found += [Group([rank], rank.cores) for rank in on_host]
    return found


def workers_that_fit(session: Session) -> int | None:
    """Return the workers that every rank which shares cores with the session's may have, with a core for each process.

    At least 1; None if the session is not a rank's, or if the number of cores is unknown.
    """
    shared = next(
        (group for group in groups(session.ranks) if session.of_rank in {one.rank for one in group.ranks}), None
    )
    if shared is None or len(session.ranks) < 2 or not shared.cores:
        return None
    return max(1, int(shared.cores / len(shared.ranks)) - 1)


def too_many(ranks: Sequence[Rank]) -> Warning_ | None:
    """Warn of the group of ranks with the most processes per core, if these are more than one."""
    if len(ranks) < 2:
        return None
    crowded = [group for group in groups(ranks) if group.processes > group.cores > 0 and group.workers]
    if not crowded:
        return None
    worst = max(crowded, key=lambda group: group.processes / group.cores)
    count, each = len(worst.ranks), {rank.workers for rank in worst.ranks}
    ranked = counted(count, "rank")
    told = f"{ranked} x {counted(max(each), 'worker')}" if len(each) == 1 else f"the workers of {ranked}"
    told += f" on {counted(worst.cores, 'core')}"
    if worst.ranks[0].host and len({rank.host for rank in ranks}) > 1:
        told += f" of {worst.ranks[0].host}"
    told += f": {counted(worst.workers, 'worker')} and the ranks' own processes share them"
    if others := len(crowded) - 1:
        told += f"; {counted(others, 'other group')} of ranks also {'has' if others == 1 else 'have'} too few cores"
    fits = int(worst.cores / count) - 1
    help = f"with {counted(fits, 'worker')} per rank, every process would have a core"
    if fits < 1:
        help = f"{counted(worst.cores / count, 'core')} per rank are too few: use fewer ranks, or more cores"
    return Warning_("more-workers-than-cores", told, help)


def _overlapping(ranks: list[Rank], numbers: dict[str, list[tuple[int, int]]]) -> Iterator[Group]:
    """Yield groups of ranks whose numbers of cores overlap."""
    parent = {affinity: affinity for affinity in numbers}

    def root(affinity: str) -> str:
        while parent[affinity] != affinity:
            parent[affinity] = affinity = parent[parent[affinity]]
        return affinity

    reached, last = -1, ""
    for first, end, affinity in sorted((*span, affinity) for affinity, spans in numbers.items() for span in spans):
        if first <= reached:
            parent[root(affinity)] = root(last)
        if end > reached:
            reached, last = end, affinity
    found: dict[str, list[Rank]] = {}
    for rank in ranks:
        found.setdefault(root(rank.affinity), []).append(rank)
    for members in found.values():
        spans = sorted({span for rank in members for span in numbers[rank.affinity]})
        held, reached = 0, -1
        for first, end in spans:
            held += max(0, end - max(first, reached + 1) + 1)
            reached = max(reached, end)
        quota = [rank.cores for rank in members if 0 < rank.cores < sum(b - a + 1 for a, b in numbers[rank.affinity])]
        yield Group(members, min([float(held), *quota]))


def _ranges(affinity: str) -> list[tuple[int, int]]:
    """Return the first and last number of each range; empty if the text is not a list of ranges."""
    if not _RANGES.fullmatch(affinity):
        return []
    ends = [part.split("-") for part in affinity.split(",")]
    return [(int(numbers[0]), int(numbers[-1])) for numbers in ends]
