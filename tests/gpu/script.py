"""A training script for the GPU tests: its costs are planted by arguments."""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[tuple[Tensor, int]]):
    def __init__(self, width: int, transform_ms: float) -> None:
        self.image = torch.rand(3, width, width)
        self.transform_ms = transform_ms
        self.transform = self.prepare

    def prepare(self, image: Tensor) -> Tensor:
        time.sleep(self.transform_ms / 1000)
        return image + 1

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.image), index % 10


class WholeBatches(Dataset[tuple[Tensor, Tensor]]):
    """Batches that lie ready in pageable memory: nothing is left to pay for but their copy to the device."""

    def __init__(self, width: int) -> None:
        self.batch = torch.rand(256, 3, width, width)
        self.labels = torch.zeros(256, dtype=torch.long)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.batch, self.labels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--transform-ms", type=float, default=0.0)
    parser.add_argument("--step-ms", type=float, default=0.0, help="sleep in every step")
    parser.add_argument("--whole-batches", action="store_true")
    parser.add_argument("--host-only", action="store_true", help="read the batch through numpy before it is moved")
    parser.add_argument("--in-place", action="store_true", help="write into the batch on the device, and check it")
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    device = torch.device("cuda")
    if args.whole_batches:
        loader = DataLoader(WholeBatches(args.width), batch_size=None, num_workers=0)
    else:
        samples = Samples(args.width, args.transform_ms)
        loader = DataLoader(samples, batch_size=16, num_workers=args.workers, pin_memory=args.pin)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    while True:
        for images, labels in loader:
            if args.host_only:
                images = torch.from_numpy(images.numpy().copy())
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            if args.in_place:
                if float(images.max()) > 3:
                    raise SystemExit("this batch has been written into before")
                images.mul_(2).add_(1)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            time.sleep(args.step_ms / 1000)


if __name__ == "__main__":
    main()
