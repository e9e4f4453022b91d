"""Determine which rungs can be measured on a loader, to the extent that this is known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader

from ..session import Rung
from .feed import is_iterable

TOO_LARGE = "one batch is too large to be cached within the limit of 1 GiB"
NOTHING_TO_MOVE = "the batch holds no tensor that could be moved to the device"
_NO_INDEX = (
    "not separable: an iterable dataset has no index to fetch again; "
    "a map-style dataset would separate loading from transforms"
)


def availability(
    loader: DataLoader[Any], on_cpu: bool, excluded: Mapping[str, str], rungs: Sequence[str]
) -> list[Rung]:
    """Return every rung of ``rungs`` with its availability; ``excluded`` gives reasons found in an earlier pass."""
    absent: dict[str, str] = {}
    if loader.num_workers == 0:
        absent["worker"] = "num_workers=0: the training process makes the batches and hands nothing over"
    if on_cpu:
        absent["host"] = "training runs on the CPU: there is no transfer"
    reasons = dict(excluded)
    if is_iterable(loader):
        reasons.update(raw=_NO_INDEX, warm=_NO_INDEX)
    return [
        Rung(name, False, absent[name], exists=False)
        if name in absent
        else Rung(name, name not in reasons, reasons.get(name, ""))
        for name in rungs
    ]
