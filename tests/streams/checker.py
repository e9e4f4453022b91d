"""Find memory that is read before it is ready, or reused before it has been read.

Batches with known contents go through a loader as in a training loop, under conditions that reveal such a mistake:

- The consumer may be *behind*: its stream sleeps before it reads, so that the host has long dropped the batch by then.
  Or it is *ahead*: it reads at once, while all work on the loader's own streams begins with a sleep (:func:`late`).
- After each step, blocks of the batch's sizes are allocated on every stream that owns memory, overwritten and freed.
  The allocator gives a free block to the next request *on the stream that it was allocated on*, so memory that was
  freed too early is overwritten at once.
- Every batch is compared on the consumer's stream, and the counts stay on the device to the end. Nothing waits for the
  device during the steps: a wait would hide the mistakes.
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
#: Byte that overwrites freed blocks.
POISON = 0xA5
#: Blocks of each size that are overwritten on each stream, which may have several free ones.
_BLOCKS = 2
#: Steps after which the streams that own memory are looked up again; there are more as the first batches are made.
_LOOK_AT = (0, 1, 4, 16, 64)


# ---- batches whose contents are known

IMAGES, FEATURES, LABELS = (32, 3, 128, 128), (512, 64), (64,)
#: Bytes of a batch's tensors: one comes from the allocator's pool of large blocks, two from that of small ones.
SIZES = (32 * 3 * 128 * 128, 512 * 64 * 4, 64 * 8)

Batch = tuple[Tensor, Tensor, Tensor]


class Known(Dataset[Batch]):
    """Whole batches: uint8 images, float32 features, int64 labels. Every value changes from batch to batch.

    Args:
        length: number of batches.
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
    """Make work on a side stream begin with a sleep. Yield a list with one entry for each sleep."""
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
    """Overwrites the free memory of every stream."""

    def __init__(self, device: torch.device, sizes: Iterable[int]) -> None:
        self._device = device
        self._sizes = set(sizes)  # in bytes
        self._streams: list[torch.cuda.Stream] = []

    def look(self) -> None:
        """Look up the streams that own memory."""
        segments = torch.cuda.memory_snapshot()
        owners = sorted({int(one["stream"]) for one in segments if one["device"] == self._device.index})
        self._streams = [
            torch.cuda.ExternalStream(owner, self._device) if owner else torch.cuda.default_stream(self._device)
            for owner in owners
        ]

    def learn(self, batch: Any) -> None:
        """Note the sizes of a batch's tensors."""
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
    """Number of batches, and the numbers of those with a tensor that was wrong when it was read."""

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
        truth: returns the right batch ``k``, on the device; runs on the consumer's stream.
        behind: cycles that the consumer's stream sleeps before it reads a batch; with 0 it reads at once.
        streams: streams of the consumer, used in turn; by default the current one.
        keep: number of old batches that are kept, and compared again before they are dropped.
        most: maximum number of steps.
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
