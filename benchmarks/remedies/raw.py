"""How many batches a second a script's loader can supply without the transforms that move: nothing is faster than that.

The script runs up to the first loader that trains. The transforms that :func:`pipediag.offload` would move are taken
out of its dataset, pictures are handed on as the bytes they are, and the loader is iterated alone, with its own
workers, without the training step. Its batches are counted by the clock that counts the other forms' steps.
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

#: On which what moves is tried.
_SAMPLES = 8


class Stays:
    """The first links of a chain: what is left in the workers."""

    def __init__(self, links: Sequence[Any]) -> None:
        self.links = list(links)

    def __call__(self, *args: Any) -> Any:
        from pipediag.remedy.recorder import run

        made = run(self.links, args)
        return made if len(args) > 1 else made[0]


def collate(samples: Sequence[Any]) -> list[Any]:
    """A batch of raw samples: tensors and pictures of one shape stacked, others one behind the other as bytes."""
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
    """The loader's dataset with its movable transforms taken out, inside; false where there are none."""
    import pipediag
    from pipediag.remedy.plan import slot_at
    from pipediag.remedy.recorder import links_of

    pieces = pipediag.offload(loader, device, samples=_SAMPLES).plan.pieces
    with ExitStack() as undo:
        for piece in pieces:
            slot = slot_at(loader.dataset, piece.path)
            undo.enter_context(slot.replaced(Stays(links_of(slot.get())[: piece.start])))
        yield bool(pieces)


def batches(loader: DataLoader[Any], pinned: bool) -> Iterator[Any]:
    """The loader's batches, without an end."""
    from pipediag.loop.copies import detached_twin

    twin = detached_twin(loader)
    twin.__dict__.update(pin_memory=pinned, collate_fn=collate)
    while True:
        yield from twin


def install(clock: Clock, pinned: bool) -> None:
    """Let the clock count a loader's batches when the first is iterated with gradients enabled; it ends the script."""
    native = DataLoader._get_iterator

    def hooked(loader: DataLoader[Any]) -> Any:
        if torch.is_grad_enabled():
            DataLoader._get_iterator = native
            _count(loader, clock, pinned)
        return native(loader)

    DataLoader._get_iterator = hooked


def _count(loader: DataLoader[Any], clock: Clock, pinned: bool) -> NoReturn:
    """Raises ValueError where none of the loader's transforms moves."""
    with without_what_moves(loader, "cuda" if torch.cuda.is_available() else "cpu") as moves:
        if not moves:
            raise ValueError("no transform moves")
        taken = batches(loader, pinned)
        while True:
            next(taken)
            clock.stepped()
