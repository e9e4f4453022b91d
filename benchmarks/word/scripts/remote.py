"""Train on samples that are fetched from a remote storage: the workers wait for it, and the loop for them."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LATENCY = 0.008


class Remote(Dataset):
    def __init__(self) -> None:
        self.images = torch.rand(64, 3, 48, 48)

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.fetch(index), index % 10

    def fetch(self, index: int) -> torch.Tensor:
        time.sleep(LATENCY)
        return self.images[index % 64].clone()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Remote(), 16, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    ).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(1000):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(args.device)), labels.to(args.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
