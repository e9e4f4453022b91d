"""What stands in for a loader's dataset and collate function so that its workers send packed batches.

A batch that cannot be recorded after all, because a sample took a branch that no sample had taken when the plan was
made, is made for real under the same random draws, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from ..ladder import randomness
from ..ladder.slots import Slot
from .packing import Packed, pack
from .plan import Plan
from .recorder import Recorder, unhidden


@dataclass
class Unrecorded:
    """A batch that the worker made for real, and why."""

    batch: Any
    reason: str

    def pin_memory(self, device: Any = None) -> Unrecorded:
        return replace(self, batch=pin_memory(self.batch, device))


Sent = Packed | Unrecorded


def fetched(dataset: Any, indices: Sequence[Any]) -> Any:
    """Samples as torch's loader fetches them."""
    many = getattr(dataset, "__getitems__", None)
    return many(indices) if many is not None else [dataset[index] for index in indices]


class Station:
    """One process's half of the remedy: fetches, collates and packs."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], plan: Plan) -> None:
        self.dataset = dataset
        self._collate = collate
        self._plan = plan
        self._recorders: list[tuple[Slot, Recorder]] | None = None

    def samples(self, indices: Sequence[Any]) -> Sent:
        """A whole batch, collated: what the loader makes of samples is done here already."""
        return self._sent(lambda: self._collate(fetched(self.dataset, indices)))

    def sample(self, index: Any) -> Sent:
        """For a loader that does no batching."""
        return self._sent(lambda: self._collate(self.dataset[index]))

    def ready(self) -> None:
        """There is nothing to prepare."""

    def _sent(self, make: Callable[[], Any]) -> Sent:
        kept = randomness.state()
        try:
            with self._plan.installed(self._up_to_date()), unhidden():
                return pack(make(), self._plan.fuse)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        randomness.restore(kept)
        return Unrecorded(make(), reason)

    def _up_to_date(self) -> list[tuple[Slot, Recorder]]:
        """The recorders, made anew where the dataset has other transforms than the last time."""
        if self._recorders is None or not all(recorder.stands_for(slot.get()) for slot, recorder in self._recorders):
            self._recorders = self._plan.recorders(self.dataset)
        return self._recorders

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recorders": None}  # slots belong to one process's objects


def handed_on(sent: Any) -> Any:
    """The collate function of a loader whose batches are complete as they are fetched."""
    return sent
