"""Find out whether the hand-off alone, which moves no transform, is possible for a loader.

Workers write their batches into reused page-locked memory, and a thread copies them to the device ahead of the loop. No
pixels change, so there is no certificate: a few batches are made both ways and compared.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..loop.copies import detached_twin, with_settings
from ..replay.pack.ring import Ring
from ..replay.run.replay import replay
from ..replay.worker import PackedCollate
from ..usercode import randomness, tree

#: Number of batches to compare: the second arrives while the first is still in its slot.
_COMPARED = 2


def why_not(loader: DataLoader[Any], device: torch.device) -> str:
    """Return why the hand-off alone is impossible or useless for this loader; empty if it is neither.

    A worker makes some batches. The loader and this process's random numbers do not change.
    """
    if device.type != "cuda":
        return f"it is for a GPU, and the loop trains on {device}"
    if not loader.num_workers:
        return "the loader has no workers that could hand batches over, and nothing may be fetched ahead"
    try:
        with randomness.undisturbed():
            return _objection(loader, device)
    except Exception as error:
        last = "".join(str(error).strip().splitlines()[-1:])  # a worker's error holds its whole traceback
        return f"comparing its batches failed with {type(error).__name__}: {last}"


def _objection(loader: DataLoader[Any], device: torch.device) -> str:
    ring = Ring(1, _COMPARED, device)
    twin = with_settings(
        detached_twin(loader),
        num_workers=1,
        prefetch_factor=_COMPARED,
        persistent_workers=False,
        pin_memory=False,
        collate_fn=_BothWays(loader.collate_fn, ring),
    )
    batches = iter(twin)
    try:
        for plain, packed in itertools.islice(batches, _COMPARED):
            own = next((leaf for leaf in tree.leaves(plain) if tree.moves_itself(leaf)), None)
            if own is not None:
                return f"its batches hold {type(own).__name__} objects, which move themselves"
            if not any(isinstance(leaf, Tensor) for leaf in tree.leaves(plain)):
                return "its batches hold no tensors"
            if apart := _difference(tree.move(plain, device, non_blocking=True), replay(packed, device), "batch"):
                return f"handed over, {apart}"
    finally:
        batches._shutdown_workers()
    return ""


class _BothWays:
    """Collate function that returns a batch twice: plain, and packed."""

    def __init__(self, collate: Callable[[Any], Any], ring: Ring) -> None:
        self._collate = collate
        self._packed = PackedCollate(collate, ring)

    def __call__(self, samples: Any) -> Any:
        before = randomness.state()
        plain = self._collate(tree.copied(samples))
        randomness.restore(before)
        return plain, self._packed(samples)


def _difference(one: Any, other: Any, at: str) -> str:
    """Return where two batches differ in containers, dtypes, strides or values; empty if they do not differ."""
    if type(one) is not type(other):
        return f"{at} would be of type {type(other).__name__}, not {type(one).__name__}"
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(one, Tensor):
        layout = one.layout == torch.strided
        kinds = [(t.shape, t.dtype, t.device, t.layout, t.stride() if layout else ()) for t in (one, other)]
        same = kinds[0] == kinds[1] and (not layout or torch.equal(_bits(one), _bits(other)))
        return "" if same else f"{at} would differ"
    if isinstance(one, Mapping):
        if list(one) != list(other):
            return f"{at} would have other keys"
        pairs = [(f"{at}[{key!r}]", value, other[key]) for key, value in one.items()]
    elif isinstance(one, (tuple, list)):
        if len(one) != len(other):
            return f"{at} would have another length"
        pairs = [(f"{at}[{number}]", *both) for number, both in enumerate(zip(one, other, strict=True))]
    elif dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        pairs = [(f"{at}.{name}", getattr(one, name), getattr(other, name)) for name in names]
    return next(filter(None, (_difference(mine, theirs, where) for where, mine, theirs in pairs)), "")


def _bits(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes, in which equal NaN compare as equal."""
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor
