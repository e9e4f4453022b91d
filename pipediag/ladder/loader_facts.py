"""Describe a loader: its settings and the source locations of its parts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from ..errors import UsageError
from ..frames import is_installed
from ..loop.copies import require_no_state
from ..sample_cache.suitable import fetches_together, why_unsuitable
from ..session import Loader, Place
from ..usercode.chain import draws_at_random
from ..usercode.places import definition, place_of
from ..usercode.slots import find_slots
from .feed import epoch_length, is_iterable


def describe(loader: DataLoader[Any], where: str, batch_bytes: int) -> Loader:
    return Loader(
        dataset=type(loader.dataset).__name__,
        batch_size=loader.batch_size if loader.batch_size is not None else _sampled_size(loader),
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        start_method=_start_method(loader),
        iterable=is_iterable(loader),
        length=epoch_length(loader),
        where=where,
        batch_bytes=batch_bytes,
        dataset_code=_dataset_place(loader.dataset),
        transform=_transform_place(loader.dataset),
        collate=place_of(loader.collate_fn),
        uncached=_why_uncached(loader),
        together=fetches_together(loader.dataset),
    )


def _why_uncached(loader: DataLoader[Any]) -> str:
    """Return why a cache would keep none of its samples, as far as the loader and the dataset's own code show it."""
    try:
        require_no_state(loader)
    except UsageError as reason:
        return str(reason)
    _, method = _item_method(loader.dataset)
    if why := why_unsuitable(loader):
        return why
    return "its samples draw from a random generator outside its transforms" if draws_at_random(method) else ""


def _dataset_place(dataset: Any) -> Place:
    inner, method = _item_method(dataset)
    if method is None:
        return Place(type(inner).__name__)
    return Place(f"{type(inner).__name__}.{method.__name__}", definition(method))


def _item_method(dataset: Any) -> tuple[Any, Callable[..., Any] | None]:
    """Return the innermost dataset and its item method: wrappers such as Subset do not do the work."""
    inner = dataset
    for _ in range(8):
        below = getattr(inner, "dataset", None)
        if isinstance(inner, ConcatDataset) and len({type(part) for part in inner.datasets}) == 1:
            below = inner.datasets[0]
        if not isinstance(below, Dataset):
            break
        inner = below
    method: Callable[..., Any] | None = None
    for name in ("__getitems__", "__getitem__", "__iter__"):
        method = getattr(type(inner), name, None)
        if method is not None and (name != "__getitem__" or method is not Dataset.__getitem__):
            break
    return inner, method


def _transform_place(dataset: Any) -> Place | None:
    slots = find_slots(dataset)
    if not slots:
        return None
    # VisionDataset keeps the same transform twice, once wrapped together with the target's.
    slot = next((s for s in slots if s.name == "transform"), slots[0])
    value = slot.get()
    links = getattr(value, "transforms", None)
    if isinstance(links, (list, tuple)) and links:
        inside = ", ".join(getattr(link, "__name__", type(link).__name__) for link in links)
        return Place(f"{type(value).__name__}({inside})", _dataset_place(dataset).where)
    place = place_of(value)
    return Place(place.name, place.where if not is_installed(place.where) else _dataset_place(dataset).where)


def _sampled_size(loader: DataLoader[Any]) -> int | None:
    size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def _start_method(loader: DataLoader[Any]) -> str:
    if loader.num_workers == 0:
        return ""
    context = loader.multiprocessing_context
    method = getattr(context, "get_start_method", None)
    if method is not None:
        return str(method())
    return str(torch.multiprocessing.get_start_method(allow_none=True) or ("fork" if sys.platform == "linux" else ""))
