"""Say why the samples of a loader cannot be kept, as far as the loader itself shows it before any is made."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Subset


def why_unsuitable(loader: DataLoader[Any]) -> str:
    """Return why no sample of the loader can be kept, or ""."""
    if isinstance(loader.dataset, IterableDataset):
        return "the samples of an iterable dataset have no index"
    if not hasattr(type(loader.dataset), "__len__"):
        return "the dataset has no length"
    if iterates_itself(loader):
        return f"{type(loader).__name__} has an iterator of its own"
    return ""


def iterates_itself(loader: DataLoader[Any]) -> bool:
    """Return whether the loader's class has an iterator of its own."""
    return type(loader).__iter__ is not DataLoader.__iter__


def fetches_together(dataset: Any) -> bool:
    """Return whether the dataset's own code makes the samples of a batch together."""
    while isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))
