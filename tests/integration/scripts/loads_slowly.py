"""Train on files that take long to read, with a random transform, for as many epochs as asked."""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from ordinary import classifies
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import pipediag


class Files(Dataset):
    """Vectors of 64 numbers. Each is the mean of the rows of its file, turned by the transform."""

    def __init__(self, root: Path, ms: float) -> None:
        self.paths, self.ms = sorted(root.glob("*.npy")), ms
        self.transform = turned

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(read(self.paths[index], self.ms)), index % 4


@pipediag.pure
def read(path: Path, ms: float) -> Tensor:
    rows = np.load(path)
    time.sleep(ms / 1000)
    return torch.from_numpy(rows.mean(0))


def turned(vector: Tensor) -> Tensor:
    return vector.roll(random.randrange(64))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ms", type=float, default=10.0)
    args = parser.parse_args()
    root = Path("vectors")
    if not root.exists():
        root.mkdir()
        for k in range(96):
            np.save(root / f"{k:02}.npy", np.random.default_rng(k).random((32, 64), dtype=np.float32))
    torch.manual_seed(0)
    random.seed(0)
    data = Files(root, args.ms)
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=args.workers)
    step = classifies(nn.Linear(64, 4), 0.1)
    for epoch in range(args.epochs):
        began = time.monotonic()
        for vectors, labels in loader:
            loss = step(vectors, labels)
            if args.epochs < 10:
                print(f"loss {loss:.9f}")
        if args.epochs < 10:
            print(f"seconds {epoch} {time.monotonic() - began:.3f}")


if __name__ == "__main__":
    main()
