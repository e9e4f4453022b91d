"""Train without workers: the loop makes large arrays with numpy, in a small part of its step."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROUNDS = 1


class Fields(Dataset):
    def __len__(self) -> int:
        return 2_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.field(index), index % 10

    def field(self, index: int) -> torch.Tensor:
        values = np.full((3, 128, 128), index % 10, dtype=np.float32)
        for seed in range(ROUNDS):
            values += np.random.default_rng(index + seed).random((3, 128, 128), dtype=np.float32)
        return torch.from_numpy(np.ascontiguousarray(values[:, ::-1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    loader = DataLoader(Fields(), 32, shuffle=True)
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
