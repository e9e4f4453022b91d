"""Run trials of a plan on the user's own samples, in a separate process (:mod:`pipediag.loop.separate_process`).

To find out what can move, and to prove that the pixels stay the same, samples are made that the training did not
request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..loop.separate_process import Collate, tried
from ..replay.certify.samples import Real, Recorded, real, recorded
from ..replay.custom import Reference, Refused, reference_of
from ..replay.ops.op import NotRecordable
from ..replay.plan import Place, Plan, link_at
from ..replay.record.scouting import Found, find, given_to

#: Number of samples that a process of :func:`witnesses` makes at a time, and maximum number of processes at once.
_TOGETHER, _PROCESSES = 8, 8

_tried = partial(tried, refusal=NotRecordable)


def found(loader: DataLoader[Any], start: Plan, samples: int) -> Found:
    """Return what can be recorded: see :func:`pipediag.replay.record.scouting.find`."""
    return next(_tried(loader, partial(_find, start=start), samples))  # type: ignore[no-any-return]


def reference_at(loader: DataLoader[Any], place: Place, samples: int) -> Reference:
    """Return what the user's own link at ``place`` gets and gives for ``samples`` samples.

    Raises:
        Refused: the link must stay in the worker.
    """
    reference: Reference | Refused = next(_tried(loader, partial(_reference, place=place), samples))
    if isinstance(reference, Refused):
        raise reference
    return reference


def witnesses(loader: DataLoader[Any], plan: Plan, samples: int) -> Iterator[tuple[Real, Recorded]]:
    """Yield samples made both ways, each in processes of its own: see :mod:`pipediag.replay.certify.samples`."""
    seed = torch.initial_seed()
    # Not at the same time: the processes may share connections, which cannot be reopened as files are. Where the loader
    # has several workers, these share them too.
    for_real = list(_tried(loader, real, samples, _TOGETHER, seed, most=_PROCESSES))
    again = _tried(loader, partial(recorded, plan=plan), samples, _TOGETHER, seed, most=_PROCESSES)
    return zip(for_real, again, strict=True)


def _find(dataset: Any, collate: Collate, indices: list[Any], start: Plan) -> Found:
    one = find(dataset, collate, indices, start)
    return one._replace(plan=replace(one.plan, own={}))  # this process has them, and they may not be picklable


def _reference(dataset: Any, collate: Collate, indices: list[Any], place: Place) -> Reference | Refused:
    images = given_to(dataset, place, indices)
    try:
        if images is None:
            raise Refused("it takes or gives something else than one plain tensor")
        return reference_of(link_at(dataset, place), images)
    except Refused as refused:
        return Refused(str(refused))
