"""Trains on large batches of bytes that a prefetcher copies on a stream of its own; no transform could move.

It ends with an error if a batch does not hold what its labels say.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

SIZE = 224


class Squares(Dataset[tuple[Any, int]]):
    """Images of one random colour, which is the label: no sample could be kept for the next epoch."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Any, int]:
        colour = int(torch.randint(251, ()))
        return np.full((3, SIZE, SIZE), colour, dtype=np.uint8), colour


class Prefetcher:
    """As in NVIDIA's apex: the stream that copies does not wait for the one that trains."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.stream = torch.cuda.Stream()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        made = None
        for images, labels in self.loader:
            with torch.cuda.stream(self.stream):
                images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
                following = images.float(), labels
            del images, labels
            if made is not None:
                yield made
            torch.cuda.current_stream().wait_stream(self.stream)
            for tensor in following:
                tensor.record_stream(torch.cuda.current_stream())
            made = following
        if made is not None:
            yield made


def prefetched(how: str, workers: int) -> Iterable[tuple[Tensor, Tensor]]:
    settings: dict[str, Any] = {"batch_size": 128, "num_workers": workers, "drop_last": True}
    if how != "timm":
        return Prefetcher(DataLoader(Squares(), collate_fn=default_collate, **settings))
    from timm.data.loader import PrefetchLoader, fast_collate

    loader = DataLoader(Squares(), collate_fn=fast_collate, **settings)
    return PrefetchLoader(loader, mean=(0.0,) * 3, std=(1 / 255,) * 3, device=torch.device("cuda"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["timm", "apex"], default="timm")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    step = 0
    while step < args.steps:
        for images, labels in prefetched(args.how, args.workers):
            for corner in (images[:, 0, 0, 0], images[:, 2, -1, -1], images[:, 1, SIZE // 2, SIZE // 2]):
                wrong += (corner != labels).sum()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels % 10)
            loss.backward()
            optimizer.step()
            step += 1
            # timm's stream would overwrite a batch that the training still reads if the host ran ahead of the device.
            if (args.how == "timm" or step % 20 == 0) and int(wrong):
                raise SystemExit(f"{int(wrong)} pixels are not what their labels say")
            if args.steps < 1000:
                print(f"loss {loss.item():.9f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
