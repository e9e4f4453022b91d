"""Merging the tapes of a batch: which samples take which step together, and where their pixels lie meanwhile.

Every sample keeps its own order of ops. Samples whose next op is the same and whose images have one shape and dtype
take it in one launch; the op of the earliest link goes first, so that those which skipped a link wait for the others.
Where the images of a launch lie is decided here, in the worker, so that the training process only launches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from .ops import Op

#: Ops that take images of different sizes in one launch.
RAGGED = frozenset({"resample", "fast_resample"})

Rows = range | tuple[int, ...] | None  # rows of a group: a stretch of it, any of them, or all


class Take(NamedTuple):
    """Images out of one group."""

    group: int
    rows: Rows


class Step(NamedTuple):
    """One launch: ``ops`` on the images that ``takes`` names, one after the other."""

    ops: list[Op]  # of each of them: name, static part, shape and dtype are the same for all
    takes: tuple[Take, ...]
    group: int  # where the results go
    in_place: bool  # the results replace what was taken


class Output(NamedTuple):
    """The images of one leaf of the batch: those of ``takes``, brought into ``order`` (None: they are in order)."""

    takes: tuple[Take, ...]
    order: tuple[int, ...] | None


class Program(NamedTuple):
    steps: list[Step]
    outputs: list[Output]
    rows: list[int]  # how many images each group holds


def merge(
    tapes: Sequence[tuple[tuple[Op, ...], tuple[float, ...]]],
    places: Sequence[tuple[int, int]],
    groups: Sequence[tuple[Any, ...]],
    leaves: Sequence[Sequence[int]],
) -> Program:
    """The program for ``tapes`` (ops and their sites), whose sources lie at ``places`` (group, row).

    ``groups`` says what kind of images each group of sources holds (their shape first), and ``leaves`` which samples
    make up each result.
    """
    return _Merger(tapes, places, groups).program(leaves)


class _Merger:
    def __init__(self, tapes: Any, places: Any, groups: Any) -> None:
        self._tapes = tapes
        self._places = list(places)
        self._kinds: list[tuple[Any, ...]] = list(groups)
        self._sizes = [0] * len(groups)
        for group, row in places:
            self._sizes[group] = max(self._sizes[group], row + 1)
        self._sources = len(groups)
        self._next = [0] * len(tapes)
        self._made = Program([], [], self._sizes)

    def program(self, leaves: Sequence[Sequence[int]]) -> Program:
        waiting = [i for i, (ops, _) in enumerate(self._tapes) if ops]
        while waiting:
            self._launch(self._choose(waiting))
            waiting = [i for i in waiting if self._next[i] < len(self._tapes[i][0])]
        for leaf in leaves:
            takes, ordered = self._takes(leaf)
            rank = {i: k for k, i in enumerate(ordered)}
            order = None if ordered == list(leaf) else tuple(rank[i] for i in leaf)
            self._made.outputs.append(Output(takes, order))
        return self._made

    def _choose(self, waiting: list[int]) -> list[int]:
        """The samples of the next launch: of the earliest link, the op that most of them want."""
        earliest = min(self._tapes[i][1][self._next[i]] for i in waiting)
        wanted: dict[Any, list[int]] = defaultdict(list)
        for i in waiting:
            ops, sites = self._tapes[i]
            place = self._next[i]
            if sites[place] == earliest:
                op = ops[place]
                kind = self._kinds[self._places[i][0]]
                fits = kind[1:] if op.name in RAGGED else kind
                wanted[op.name, op.static, op.shape, op.dtype, fits].append(i)
        return max(wanted.values(), key=len)

    def _launch(self, samples: list[int]) -> None:
        takes, ordered = self._takes(sorted(samples, key=self._standing))
        ops = [self._tapes[i][0][self._next[i]] for i in ordered]
        kind = (ops[0].shape, ops[0].dtype)
        group = takes[0].group
        in_place = (
            len(takes) == 1 and takes[0].rows is not None and group >= self._sources and self._kinds[group] == kind
        )
        if not in_place:
            group = len(self._kinds)
            self._kinds.append(kind)
            self._sizes.append(len(ordered))
            for row, i in enumerate(ordered):
                self._places[i] = (group, row)
        self._made.steps.append(Step(ops, takes, group, in_place))
        for i in ordered:
            self._next[i] += 1

    def _standing(self, i: int) -> tuple[int, int]:
        """Images of a group are taken as they lie there; sources, which several views may share, view by view."""
        group, row = self._places[i]
        return group, row if group >= self._sources else i

    def _takes(self, samples: Sequence[int]) -> tuple[tuple[Take, ...], list[int]]:
        """Where the images of ``samples`` lie, group by group, and the samples in that order."""
        by_group: dict[int, list[int]] = defaultdict(list)
        for i in samples:
            by_group[self._places[i][0]].append(i)
        takes = tuple(
            Take(group, _rows([self._places[i][1] for i in members], self._sizes[group]))
            for group, members in by_group.items()
        )
        return takes, [i for members in by_group.values() for i in members]


def _rows(rows: list[int], size: int) -> Rows:
    stretch = range(rows[0], rows[0] + len(rows))
    if rows == list(stretch):
        return None if len(rows) == size else stretch
    return tuple(rows)
