"""Train without workers on samples from a slow storage: the loop itself waits for each of them."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LATENCY = 0.0006


class Paced(Dataset):
    def __init__(self) -> None:
        self.images = torch.rand(64, 3, 64, 64)

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
    args = parser.parse_args()
    loader = DataLoader(Paced(), 32, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
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
