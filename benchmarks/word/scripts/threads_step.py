"""Train a wide network on all cores, on rows of which two workers only hide a part: they have little to do."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, WIDTH = 512, 2048


class Hide:
    """Set some of a row's features to zero."""

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        return row * (torch.rand(len(row)) > 0.15)


class Rows(Dataset):
    def __init__(self, transform: Hide) -> None:
        self.rows = torch.rand(4096, FEATURES)
        self.transform = transform

    def __len__(self) -> int:
        return 500_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.rows[index % len(self.rows)]
        return self.transform(row), row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    loader = DataLoader(Rows(Hide()), 128, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, FEATURES)
    ).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(1000):
        for hidden, rows in loader:
            loss = nn.functional.mse_loss(model(hidden.to(args.device)), rows.to(args.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
