"""Train in epochs of ten batches, each with workers of its own that first read the table of labels."""

import argparse
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS = 120_000


class Rows(Dataset):
    """Images whose labels are in a table, which is read when the first is needed."""

    def __init__(self) -> None:
        self.images = torch.rand(160, 3, 48, 48)
        self.text = json.dumps([{"label": row % 10, "name": f"row {row}"} for row in range(ROWS)])
        self.table = None

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.table is None:
            self.table = json.loads(self.text)
        return self.images[index], self.table[index]["label"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Rows(), 16, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    ).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(10_000):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(args.device)), labels.to(args.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
