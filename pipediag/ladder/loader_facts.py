"""Describe a loader: its settings and the source locations of its parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ..errors import UsageError
from ..loop.copies import require_torchs_batches
from ..loop.iterables import Batches, is_plain
from ..session import FEWER_THREADS, Loader, Place, Rung
from ..usercode.attributes import attribute, is_a
from ..usercode.constructions import places_of
from ..usercode.loops import dataset_line, datasets_in
from ..usercode.places import place_of, placed
from ..usercode.transform_slots import find_slots
from .feed import epoch_length, is_iterable


def describe(loader: DataLoader[Any], line: str, batch_bytes: int, called: str = "") -> Loader:
    """Describe a loader; ``line`` is the line of the user's loop, or "" if a library runs it.

    ``called`` is then the user's call of that library. It stands for the loop if the dataset is a library's too, and no
    line of the user's is known that makes it.
    """
    dataset, size = loader.dataset, loader.batch_size
    dataset_code = placed(dataset.name, dataset.code) if isinstance(dataset, Batches) else _dataset_place(dataset)
    if size is None:
        size = attribute(loader.batch_sampler, "batch_size", None)
    return Loader(
        dataset=dataset.name if isinstance(dataset, Batches) else type(dataset).__name__,
        batch_size=size if isinstance(size, int) else None,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        start_method=_start_method(loader),
        iterable=is_iterable(loader),
        length=epoch_length(loader),
        where=line or dataset_code.made or (called if dataset_code.library else "") or dataset_code.where,
        batch_bytes=batch_bytes,
        dataset_code=dataset_code,
        transform=_transform_place(loader.dataset, dataset_code),
        collate=place_of(loader.collate_fn),
        sampler=_sampler_place(loader),
        uncached=_why_uncached(loader),
        plain_iterable=is_plain(loader),
    )


def _why_uncached(loader: DataLoader[Any]) -> str:
    """Return why ``run`` would keep nothing of what this loader reads."""
    try:
        require_torchs_batches(loader)
    except UsageError as reason:
        return str(reason)
    return ""


def _dataset_place(dataset: Any) -> Place:
    """Return the innermost dataset's item method: wrappers such as Subset do not do the work."""
    *_, inner = datasets_in(dataset)
    method: Callable[..., Any] | None = None
    for name in ("__getitems__", "__getitem__", "__iter__"):
        method = attribute(type(inner), name)
        if method is not None and (name != "__getitem__" or method is not Dataset.__getitem__):
            break
    if method is None:
        return Place(type(inner).__name__)
    place = placed(f"{type(inner).__name__}.{method.__name__}", method)
    return replace(place, made=dataset_line(dataset)) if place.library else place


def _transform_place(dataset: Any, dataset_code: Place) -> Place | None:
    """Return the dataset's transform at the user's line that constructs it, else where the dataset applies it."""
    slots = find_slots(dataset)
    if not slots:
        return None
    # VisionDataset keeps the same transform twice, once wrapped together with the target's.
    slot = next((s for s in slots if s.name == "transform"), slots[0])
    value = slot.get()
    links = attribute(value, "transforms", None)
    if isinstance(links, (list, tuple)) and links:
        inside = ", ".join(attribute(link, "__name__", type(link).__name__) for link in links)
        users = (place for place in places_of(links) if place.where and not place.library)
        place = replace(next(users, dataset_code), name=f"{type(value).__name__}({inside})")
    else:
        place = place_of(value)
    return replace(dataset_code, name=place.name) if place.library else place


def _sampler_place(loader: DataLoader[Any]) -> Place | None:
    """Return the sampler that chooses: the user's own, or the innermost of torch's; None for an iterable dataset."""
    if is_iterable(loader):
        return None
    found: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    while _is_torchs(found) and is_a(inner := attribute(found, "sampler"), Iterable):
        found = inner
    name = type(found).__name__
    return Place(name) if _is_torchs(found) else placed(name, attribute(type(found), "__iter__"))


def _is_torchs(obj: Any) -> bool:
    return type(obj).__module__.partition(".")[0] == "torch"


def _start_method(loader: DataLoader[Any]) -> str:
    if loader.num_workers == 0:
        return ""
    context = loader.multiprocessing_context
    method = getattr(context, "get_start_method", None)
    if method is not None:
        return str(method())
    return str(torch.multiprocessing.get_start_method(allow_none=True) or ("fork" if sys.platform == "linux" else ""))


#: Why nothing can be made again for a loop that draws from something else than a loader.
FINISHED = "the loop draws finished batches from an iterable that is no DataLoader"
_USED_UP = "the loop draws from an iterable once: what is drawn alone would be missing to it"
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
    else:
        absent[FEWER_THREADS] = "training runs on a device: torch's threads do little of a step"
    reasons = dict(excluded)
    if is_plain(loader):
        absent.update(raw=FINISHED, warm=FINISHED, supply=_USED_UP)
    elif is_iterable(loader):
        reasons.update(raw=_NO_INDEX, warm=_NO_INDEX)
    return [
        Rung(name, False, absent[name], exists=False)
        if name in absent
        else Rung(name, name not in reasons, reasons.get(name, ""))
        for name in rungs
    ]
