"""Measure how many batches per second a script's loader supplies without the moved transforms: an upper bound.

The script runs up to the first loader that trains. The transforms that :func:`pipediag.offload` would move are removed
from its dataset, and images are passed on as bytes. The loader then runs alone, with its own workers and without the
training step. The clock counts its batches as it counts the steps of the other forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import PIL.Image
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from .clock import Clock

#: Number of samples for finding the movable transforms.
_SAMPLES = 8


class Stays:
    """The first links of a chain: those that stay in the workers."""

    def __init__(self, links: Sequence[Any]) -> None:
        self.links = list(links)

    def __call__(self, *args: Any) -> Any:
        from pipediag.replay.record.recorder import run

        made = run(self.links, args)
        return made if len(args) > 1 else made[0]


def collate(samples: Sequence[Any]) -> list[Any]:
    """Collate raw samples: stack tensors and images of one shape, concatenate the bytes of others."""
    columns = zip(*(tree_flatten(sample)[0] for sample in samples), strict=True)
    return [_column(list(column)) for column in columns]


def _column(values: list[Any]) -> Any:
    if isinstance(values[0], PIL.Image.Image):
        values = [torch.from_numpy(np.array(picture)) for picture in values]
    if not isinstance(values[0], torch.Tensor):
        return torch.as_tensor(values) if isinstance(values[0], (int, float)) else values
    tensors = [value.as_subclass(torch.Tensor) for value in values]
    if len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(tensors)
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@contextmanager
def without_what_moves(loader: DataLoader[Any], device: str) -> Iterator[bool]:
    """Remove the movable transforms from the loader's dataset within the context; yield False if there are none."""
    import pipediag
    from pipediag.replay.plan import slot_at
    from pipediag.replay.record.recorder import links_of

    pieces = pipediag.offload(loader, device, samples=_SAMPLES).plan.pieces
    with ExitStack() as undo:
        for piece in pieces:
            slot = slot_at(loader.dataset, piece.path)
            undo.enter_context(slot.replaced(Stays(links_of(slot.get())[: piece.start])))
        yield bool(pieces)


def batches(loader: DataLoader[Any], pinned: bool) -> Iterator[Any]:
    """Yield the loader's batches, endlessly."""
    from pipediag.loop.copies import detached_twin

    twin = detached_twin(loader)
    twin.__dict__.update(pin_memory=pinned, collate_fn=collate)
    while True:
        yield from twin


def install(clock: Clock, pinned: bool) -> None:
    """Let the clock count the batches of the first loader iterated with gradients enabled; this ends the script."""
    native = DataLoader._get_iterator

    def hooked(loader: DataLoader[Any]) -> Any:
        if torch.is_grad_enabled():
            DataLoader._get_iterator = native
            _count(loader, clock, pinned)
        return native(loader)

    DataLoader._get_iterator = hooked


def _count(loader: DataLoader[Any], clock: Clock, pinned: bool) -> NoReturn:
    """Count the batches; raise ValueError if none of the loader's transforms moves."""
    with without_what_moves(loader, "cuda" if torch.cuda.is_available() else "cpu") as moves:
        if not moves:
            raise ValueError("no transform moves")
        taken = batches(loader, pinned)
        while True:
            next(taken)
            clock.stepped()
