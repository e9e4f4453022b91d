"""Run epochs under torch's CUDA sanitizer, which ends the program at a possible race.

It follows the kernels that the thread which imported torch launches, and the waits of all threads. It sees neither the
inside of a CUDA graph, nor launches of other libraries and other threads, nor memory that is reused. So it sees most of
loaders without workers, which have no thread. A forked process must disable it: it asks for the current stream at every
operation, and there is none.

    TORCH_CUDA_SANITIZER=1 python sanitized.py pipeline | offload | race
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torchvision.transforms.v2 as v2
from torch import Tensor, nn
from torch.cuda import _sanitizer
from torch.utils.data import DataLoader, Dataset

from pipediag import offload
from pipediag.streams.pipeline import StagePipeline

BATCHES = 30


class Images(Dataset[Any]):
    def __init__(self, transform: Any = None) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> Any:
        image = torch.full((3, 32, 32), index, dtype=torch.uint8)
        return image if self.transform is None else self.transform(image), index


def loader(workers: int, transform: Any = None) -> DataLoader[Any]:
    return DataLoader(Images(transform), batch_size=4, num_workers=workers)


def train(batches: Any) -> None:
    """Train for an epoch: read each batch in the forward and the backward pass, and write into it."""
    model = nn.Linear(3, 2, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for images, numbers in batches:
        optimizer.zero_grad()
        scores = model(images.float().mean((2, 3)))
        (scores.sum() + numbers.sum()).backward()
        optimizer.step()
        images.zero_()
        steps += 1
    torch.cuda.synchronize()
    assert steps == BATCHES


def pipeline() -> None:
    encoder = nn.Conv2d(3, 3, 3, device="cuda").eval().requires_grad_(False)

    def encode(batch: Any) -> tuple[Tensor, Tensor]:
        images, numbers = batch
        return encoder(images.float()), numbers

    def scale(batch: Any) -> tuple[Tensor, Tensor]:
        return batch[0] / 255, batch[1] + 1

    for workers in (0, 2):
        for graphs in (False, True):
            train(StagePipeline(loader(workers), [encode, scale], "cuda", graphs=graphs))


def offloaded() -> None:
    transform = v2.Compose([v2.RandomCrop(24), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    for workers in (0, 2):
        made = offload(loader(workers, transform), "cuda", samples=8)
        assert made.plan.pieces, made.plan.reasons
        train(made)
        train(StagePipeline(made, [lambda batch: (batch[0] * 2, batch[1])], "cuda"))


def race() -> None:
    """Read a batch without waiting for the stream that copied it."""
    side = torch.cuda.Stream()
    for images, _ in loader(0):
        with torch.cuda.stream(side):
            batch = images.pin_memory().to("cuda", non_blocking=True)
        batch.sum()


if __name__ == "__main__":
    assert _sanitizer.cuda_sanitizer.enabled, "TORCH_CUDA_SANITIZER is not set"
    os.register_at_fork(after_in_child=_sanitizer.cuda_sanitizer.disable)
    {"pipeline": pipeline, "offload": offloaded, "race": race}[sys.argv[1]]()
