"""Finds memory that is read before it is ready, or given to somebody else before it has been read.

Batches whose contents are known are driven through a loader as a training loop would drive it, under conditions in
which such a mistake cannot go unseen:

- The consumer may be *behind*: its stream sleeps before it reads, so that the host has long dropped the batch by then.
  Or it is *ahead*: it reads at once, while whatever the loader does on its own streams begins with a sleep
  (:func:`late`).
- After each step blocks of the batch's sizes are allocated on every stream that owns memory, overwritten and freed. The
  allocator gives a block that it believes to be free to the next one who asks *on the stream that it was allocated on*:
  what was given back too early is overwritten there, at once.
- Every batch is compared on the consumer's stream, and the counts stay on the device to the end. Nothing here waits for
  the device during the steps: that would hide what is looked for.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from pipediag.usercode import tree

#: Cycles of ``torch.cuda._sleep`` in about a millisecond, on a GPU of 1 to 2 GHz.
MILLISECOND = 2_000_000
#: What freed blocks are overwritten with.
POISON = 0xA5
#: Blocks of each size that are taken and overwritten on each stream: a stream may have several that are free.
_BLOCKS = 2
#: Steps after which it is looked anew which streams own memory: they grow while the first batches are made.
_LOOK_AT = (0, 1, 4, 16, 64)


# ---- batches whose contents are known

IMAGES, FEATURES, LABELS = (32, 3, 128, 128), (512, 64), (64,)
#: Bytes of its tensors: one comes from the allocator's pool of large blocks, two from that of small ones.
SIZES = (32 * 3 * 128 * 128, 512 * 64 * 4, 64 * 8)

Batch = tuple[Tensor, Tensor, Tensor]


class Known(Dataset[Batch]):
    """Whole batches: uint8 images, float32 features, int64 labels. No value is the same in two batches in a row.

    Args:
        length: how many there are.
        device: where they are made.
    """

    def __init__(self, length: int, device: torch.device | str = "cpu") -> None:
        self.length = length
        self._images = (torch.arange(SIZES[0], device=device) % 251).to(torch.uint8).view(IMAGES)
        self._features = torch.arange(SIZES[1] // 4, dtype=torch.float32, device=device).view(FEATURES)
        self._labels = torch.arange(SIZES[2] // 8, device=device)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Batch:
        if number >= self.length:
            raise IndexError(number)
        return self._images + number % 256, self._features + number, self._labels + 1000 * number


# ---- what makes a mistake show


@contextmanager
def late(cycles: int) -> Iterator[list[int]]:
    """Work that is launched on a side stream begins with a sleep. Gives a list whose length counts the sleeps."""
    native = torch.cuda.stream
    sleeps: list[int] = []

    @contextmanager
    def entered(stream: Any) -> Iterator[None]:
        with native(stream):
            torch.cuda._sleep(cycles)
            sleeps.append(cycles)
            yield

    torch.cuda.stream = entered
    try:
        yield sleeps
    finally:
        torch.cuda.stream = native


class _Poison:
    """Overwrites memory that is free, wherever it may be handed out from."""

    def __init__(self, device: torch.device, sizes: Iterable[int]) -> None:
        self._device = device
        self._sizes = set(sizes)  # in bytes
        self._streams: list[torch.cuda.Stream] = []

    def look(self) -> None:
        """Which streams own memory now."""
        segments = torch.cuda.memory_snapshot()
        owners = sorted({int(one["stream"]) for one in segments if one["device"] == self._device.index})
        self._streams = [
            torch.cuda.ExternalStream(owner, self._device) if owner else torch.cuda.default_stream(self._device)
            for owner in owners
        ]

    def learn(self, batch: Any) -> None:
        """What is given out has these sizes."""
        self._sizes.update(tensor.untyped_storage().nbytes() for tensor in tree.tensors(batch))

    def __call__(self) -> None:
        for stream in self._streams:
            with torch.cuda.StreamContext(stream):
                taken = [
                    torch.empty(size, dtype=torch.uint8, device=self._device).fill_(POISON)
                    for size in self._sizes
                    for _ in range(_BLOCKS)
                ]
                del taken


# ---- driving


@dataclass(frozen=True)
class Found:
    """The batches that came, and of which of them a tensor was not what it should have been when it was read."""

    steps: int
    wrong: list[int]


def drive(
    loader: Iterable[Any],
    truth: Callable[[int], Any],
    *,
    behind: int = 0,
    streams: Sequence[torch.cuda.Stream] | None = None,
    keep: int = 0,
    most: int = 10_000,
) -> Found:
    """Take all batches of ``loader`` as a training loop would.

    Args:
        truth: gives batch ``k`` as it ought to be, on the device; run on the consumer's stream.
        behind: cycles that the consumer's stream sleeps before it reads a batch; with 0 it reads at once.
        streams: the consumer's, taken in turn; that which is current if there are none.
        keep: so many old batches are held on to, and compared again when they are let go.
        most: the largest number of steps; a loader that gives more fails.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    poison = _Poison(device, SIZES)
    counts = torch.zeros(most, dtype=torch.int32, device=device)
    own = [torch.cuda.current_stream(device)] if streams is None else streams
    kept: deque[tuple[int, Any, torch.cuda.Stream]] = deque()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # streams of earlier loaders own nothing now

    def check(step: int, batch: Any, stream: torch.cuda.Stream) -> None:
        with torch.cuda.StreamContext(stream):
            for ours, expected in zip(tree.tensors(batch), tree.tensors(truth(step)), strict=True):
                assert ours.shape == expected.shape and ours.dtype == expected.dtype
                counts[step] += torch.ne(ours, expected).any()

    batches = iter(loader)
    steps = 0
    for stream in itertools.cycle(own):
        with torch.cuda.StreamContext(stream):
            batch = next(batches, None)
            if batch is None:
                break
            if behind:
                torch.cuda._sleep(behind)
        check(steps, batch, stream)
        if keep:
            kept.append((steps, batch, stream))
            if len(kept) > keep:
                check(*kept.popleft())
        poison.learn(batch)
        if steps in _LOOK_AT:
            poison.look()
        del batch  # the host is done with it
        poison()
        steps += 1
    while kept:
        check(*kept.popleft())
    torch.cuda.synchronize()
    return Found(steps, counts.nonzero().flatten().tolist())
