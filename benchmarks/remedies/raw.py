"""How many batches a second a script's loader can supply without the transforms that move: nothing is faster than that.

The script runs up to the first loader that trains. The transforms that :func:`pipediag.offload` would move are taken
out of its dataset, pictures are handed on as the bytes they are, and the loader is iterated alone, with its own
workers, without the training step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader

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


def rate(loader: DataLoader[Any], pinned: bool, seconds: float) -> float:
    """Batches a second of the loader alone, in whole rounds of its workers, after a run-up."""
    from pipediag.ladder.twin import detached_twin

    twin = detached_twin(loader)
    twin.__dict__.update(pin_memory=pinned, collate_fn=collate)
    workers = max(1, loader.num_workers)
    batches = _on_and_on(twin)
    for _ in range(workers * (1 + (loader.prefetch_factor or 0))):
        next(batches)
    began, taken = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or taken % workers:
        next(batches)
        taken += 1
    return taken / (time.perf_counter() - began)


def _on_and_on(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def install(pipe: Connection, seconds: float) -> None:
    """Measure when the first loader is iterated with gradients enabled, tell it, and end the script."""
    native = DataLoader._get_iterator

    def hooked(loader: DataLoader[Any]) -> Any:
        if not torch.is_grad_enabled():
            return native(loader)
        DataLoader._get_iterator = native
        pipe.send(_rates(loader, seconds))
        sys.exit(0)

    DataLoader._get_iterator = hooked


def _rates(loader: DataLoader[Any], seconds: float) -> dict[str, float]:
    """The rates with pageable memory and, where there is a GPU, with pinned memory; none where nothing moves."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with without_what_moves(loader, device) as moves:
        if not moves:
            return {}
        kinds = {"pageable": False, "pinned": True} if device == "cuda" else {"pageable": False}
        return {name: rate(loader, pinned, seconds) for name, pinned in kinds.items()}
