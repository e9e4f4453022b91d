"""Replace a loader's dataset and collate function so that its workers send packed batches.

A batch that cannot be recorded after all, because a sample took a branch that no sample took when the plan was made, is
made with pixels under the same random draws, and is marked as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from ..usercode import randomness
from ..usercode.slots import Slot
from .assembling import assembled
from .packed_batch import Packed
from .packing import pack, pack_plain
from .plan import Plan
from .recorder import Recorder, unhidden
from .ring import Ring
from .stacking import stacking
from .streams.feed import with_settings


@dataclass
class Unrecorded:
    """Batch that the worker made with pixels, and the reason. It is packed if there is a ring."""

    batch: Any
    reason: str

    def pin_memory(self, device: Any = None) -> Unrecorded:
        return replace(self, batch=pin_memory(self.batch, device))


Sent = Packed | Unrecorded


def fetched(dataset: Any, indices: Sequence[Any]) -> Any:
    """Return samples as torch's loader fetches them."""
    many = getattr(dataset, "__getitems__", None)
    return many(indices) if many is not None else [dataset[index] for index in indices]


class PackedCollate:
    """Collate function that packs each batch; tensors of ``default_collate`` are written once, directly where the
    training process reads them.

    ``ring`` takes the batches if it has a free slot.
    """

    def __init__(self, collate: Callable[[Any], Any], ring: Ring | None = None) -> None:
        self._collate = stacking(collate)
        self._ring = ring

    def __call__(self, samples: Any) -> Packed:
        return pack_plain(self._collate(samples), self._ring)

    def recorded(self, samples: Any, fuse: bool) -> Packed:
        """Pack a batch that contains recording images.

        Raises:
            NotRecordable: as for :func:`pack`.
        """
        return pack(assembled(self._collate, samples), fuse, self._ring)


def packing(loader: DataLoader[Any], ring: Ring) -> DataLoader[Any]:
    """Return a copy of the loader for one iterator, whose batches come packed through ``ring``; the loader is not
    changed.

    For a loader with persistent workers it serves all epochs, as the iterator does.
    """
    return with_settings(loader, collate_fn=PackedCollate(loader.collate_fn, ring), pin_memory=False)


class PackingSide:
    """Worker's half of the remedy: fetches, collates and packs.

    With a plan that records nothing, the batches are packed all the same. ``ring`` belongs to the iterator.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], plan: Plan, ring: Ring | None = None) -> None:
        self.dataset = dataset
        self._collate = collate
        self._packed = PackedCollate(collate, ring)
        self._real = collate if ring is None else self._packed
        self._plan = plan
        self._recorders: list[tuple[Slot, Recorder]] | None = None

    def samples(self, indices: Sequence[Any]) -> Sent:
        """Return a whole batch, already collated."""
        return self._sent(lambda: fetched(self.dataset, indices))

    def sample(self, index: Any) -> Sent:
        """Return one sample, for a loader without batching."""
        return self._sent(lambda: self.dataset[index])

    def ready(self) -> None:
        """Do nothing: no preparation is needed."""

    def _sent(self, fetch: Callable[[], Any]) -> Sent:
        if not self._plan.pieces:
            return self._packed(fetch())
        kept = randomness.state()
        try:
            with self._plan.installed(self._up_to_date()), unhidden():
                return self._packed.recorded(fetch(), self._plan.fuse)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        randomness.restore(kept)
        return Unrecorded(self._real(fetch()), reason)

    def _up_to_date(self) -> list[tuple[Slot, Recorder]]:
        """Return the recorders, rebuilt if the dataset's transforms are not those of the last batch."""
        if self._recorders is None or not all(recorder.stands_for(slot.get()) for slot, recorder in self._recorders):
            self._recorders = self._plan.recorders(self.dataset)
        return self._recorders

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recorders": None}  # slots refer to one process's objects


def handed_on(sent: Any) -> Any:
    """Return the batch unchanged: the collate function of a loader whose batches are complete when fetched."""
    return sent
