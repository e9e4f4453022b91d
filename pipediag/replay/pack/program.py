"""Merge the tapes of a batch: decide which samples take a step together, and where their images lie between steps.

Every sample keeps its own order of ops. Samples with the same next op and images of one shape and dtype take it in one
launch. The op of the earliest link goes first, so that samples that skipped a link wait for the others. The worker
decides all this, so the training process only launches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch

from ..ops.op import Kind, Op, Track

Rows = range | tuple[int, ...] | None  # rows of a group: a range, a list, or all (None)


class Take(NamedTuple):
    """Images of one group."""

    group: int
    rows: Rows


class Step(NamedTuple):
    """One launch: ``ops`` on the images of ``takes``, in order."""

    ops: list[Op]  # one per image; name, static part, shape and dtype are the same for all
    takes: tuple[Take, ...]
    group: int  # of the results
    in_place: bool  # the results replace the inputs
    ragged: bool = False  # it reads uint8 originals of different sizes where they lie in the batch's memory


class Output(NamedTuple):
    """Images of one leaf of the batch: those of ``takes``, reordered by ``order`` (None if they are in order)."""

    takes: tuple[Take, ...]
    order: tuple[int, ...] | None


class Program(NamedTuple):
    steps: list[Step]
    outputs: list[Output]
    rows: list[int]  # number of images in each group


def merge(
    tapes: Sequence[Track],
    places: Sequence[tuple[int, int]],
    groups: Sequence[tuple[Any, ...]],
    leaves: Sequence[Sequence[int]],
) -> Program:
    """Return the program for ``tapes`` (ops and their sites), whose sources lie at ``places`` (group, row).

    ``groups`` gives the kind of images in each group of sources (their shape first), and ``leaves`` the samples of each
    result.
    """
    return _Merger(tapes, places, groups).program(leaves)


class _Party:
    """Samples that take every launch together, and whose images lie in one group."""

    __slots__ = ("ahead", "group", "members", "site", "wants")

    def __init__(self, ahead: list[tuple[Kind, float, int]], group: int) -> None:
        #: The remaining steps, last one first: the kind, its site, and a number that identifies the way to the end.
        self.ahead = ahead
        self.group = group
        self.members: list[int] = []
        self.site = 0.0
        self.wants = 0  # a number that identifies the next launch

    @property
    def way(self) -> int:
        return self.ahead[-1][2] if self.ahead else 0


class _Merger:
    """Merger that groups samples into parties, launch by launch.

    The members of a party are in the order in which they are taken: images of a group in row order; sources, which
    several views may share, view by view.
    """

    def __init__(
        self, tapes: Sequence[Track], places: Sequence[tuple[int, int]], groups: Sequence[tuple[Any, ...]]
    ) -> None:
        self._ops = [iter(ops) for ops, _ in tapes]
        self._rows = [row for _, row in places]
        self._kinds: list[tuple[Any, ...]] = list(groups)
        self._sources = len(groups)
        self._numbers: dict[Any, int] = {}
        parties: dict[Any, _Party] = {}
        samples: list[list[int]] = [[] for _ in groups]
        for i, ((ops, sites), (group, _)) in enumerate(zip(tapes, places, strict=True)):
            kinds = tuple([op.kind for op in ops])
            party = parties.get((kinds, sites, group))
            if party is None:
                party = parties[kinds, sites, group] = _Party(self._ahead(kinds, sites), group)
                self._look_ahead(party)
            party.members.append(i)
            samples[group].append(i)
        self._parties = list(parties.values())
        lying = [[self._rows[i] for i in members] for members in samples]
        self._sizes = [max(rows, default=-1) + 1 for rows in lying]
        #: The samples of a group row by row, or None if they are taken in another order.
        self._orders = [
            members if rows == list(range(len(rows))) else None for members, rows in zip(samples, lying, strict=True)
        ]
        self._made = Program([], [], self._sizes)

    def program(self, leaves: Sequence[Sequence[int]]) -> Program:
        while waiting := [party for party in self._parties if party.ahead]:
            self._launch(self._chosen(waiting))
        groups = {i: party.group for party in self._parties for i in party.members}
        for leaf in leaves:
            self._made.outputs.append(self._output(list(leaf), groups))
        return self._made

    def _ahead(self, kinds: tuple[Kind, ...], sites: tuple[float, ...]) -> list[tuple[Kind, float, int]]:
        ahead: list[tuple[Kind, float, int]] = []
        way = 0
        for kind, site in zip(kinds[::-1], sites[::-1], strict=True):
            way = self._number((kind, site, way))
            ahead.append((kind, site, way))
        return ahead

    def _look_ahead(self, party: _Party) -> None:
        if party.ahead:
            kind, party.site, _ = party.ahead[-1]
            image = self._kinds[party.group]
            party.wants = self._number((kind, image[1:] if kind.operation.ragged else image))

    def _number(self, what: tuple[Any, ...]) -> int:
        """Return a number that is the same for equal values; numbers compare faster."""
        return self._numbers.setdefault(what, len(self._numbers) + 1)

    def _chosen(self, waiting: list[_Party]) -> list[_Party]:
        """Return the parties of the next launch: at the earliest link, those that want the most wanted op."""
        earliest = min([party.site for party in waiting])
        wanted: dict[int, list[_Party]] = defaultdict(list)
        for party in waiting:
            if party.site == earliest:
                wanted[party.wants].append(party)
        return max(wanted.values(), key=lambda parties: sum([len(party.members) for party in parties]))

    def _launch(self, parties: list[_Party]) -> None:
        by_group: dict[int, list[_Party]] = defaultdict(list)
        for party in parties:
            by_group[party.group].append(party)
        takes: list[Take] = []
        samples: list[int] = []
        ragged = self._is_ragged(parties[0], by_group)
        if ragged:  # the results may lie in the order in which the batch needs them
            samples = sorted([i for party in parties for i in party.members])
            groups = {i: party.group for party in parties for i in party.members}
            takes = [Take(groups[i], range(self._rows[i], self._rows[i] + 1)) for i in samples]
        else:
            for group in sorted(by_group):
                members = self._together(by_group[group])
                takes.append(self._take(group, members))
                samples += members
        ops = [next(self._ops[i]) for i in samples]
        image, (group, rows) = (ops[0].shape, ops[0].dtype), takes[0]
        in_place = len(takes) == 1 and rows is not None and group >= self._sources and self._kinds[group] == image
        if not in_place:
            if len(takes) > 1 or rows is not None:
                for row, i in enumerate(samples):
                    self._rows[i] = row
            group = len(self._kinds)
            self._kinds.append(image)
            self._sizes.append(len(samples))
            self._orders.append(samples)
        self._made.steps.append(Step(ops, tuple(takes), group, in_place, ragged))
        for party in parties:
            party.group = group
            party.ahead.pop()
            self._look_ahead(party)
        self._meet(group)

    def _is_ragged(self, party: _Party, groups: Collection[int]) -> bool:
        """Return whether the party's next launch takes uint8 originals of different sizes, from these groups."""
        originals = all(group < self._sources and self._kinds[group][1] == torch.uint8 for group in groups)
        return originals and len(groups) > 1 and party.ahead[-1][0].operation.in_memory is not None

    def _meet(self, group: int) -> None:
        """Merge the parties of a group whose remaining steps are the same."""
        same: dict[int, list[_Party]] = defaultdict(list)
        for party in self._parties:
            if party.group == group:
                same[party.way].append(party)
        for first, *others in same.values():
            if others:
                first.members = self._together([first, *others])
                self._parties = [party for party in self._parties if party not in others]

    def _together(self, parties: list[_Party]) -> list[int]:
        """Return the members of parties in one group, in the order in which they are taken."""
        if len(parties) == 1:
            return parties[0].members
        members = [i for party in parties for i in party.members]
        return sorted(members) if parties[0].group < self._sources else sorted(members, key=self._rows.__getitem__)

    def _take(self, group: int, members: list[int]) -> Take:
        if members == self._orders[group]:
            return Take(group, None)
        return Take(group, _rows([self._rows[i] for i in members], self._sizes[group]))

    def _output(self, leaf: list[int], groups: dict[int, int]) -> Output:
        by_group: dict[int, list[int]] = defaultdict(list)
        for i in leaf:
            by_group[groups[i]].append(i)
        takes = tuple([self._take(group, members) for group, members in by_group.items()])
        lying = [i for members in by_group.values() for i in members]
        if lying == leaf:
            return Output(takes, None)
        rank = {i: k for k, i in enumerate(lying)}
        return Output(takes, tuple([rank[i] for i in leaf]))


def _rows(rows: list[int], size: int) -> Rows:
    stretch = range(rows[0], rows[0] + len(rows))
    if rows == list(stretch):
        return None if len(rows) == size else stretch
    return tuple(rows)
