"""Train a detector on batches that stay lists of pictures and boxes: handing over so many tensors takes time."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    """Pictures, and of the things in each: boxes, classes, areas, and whether they are crowds."""

    def __init__(self) -> None:
        self.pictures = torch.rand(64, 3, 48, 48)
        self.boxes = torch.rand(64, 12, 4)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        boxes = self.boxes[index % 64]
        sides = boxes[:, 2:] - boxes[:, :2]
        return self.pictures[index % 64], boxes, sides.argmax(1), sides.prod(1), sides[:, 0] > 0


def as_lists(samples: list) -> list:
    """Leave pictures and things as they are, as detectors want them."""
    return [[*tensors] for tensors in zip(*samples, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Scenes(), 24, shuffle=True, num_workers=args.workers, collate_fn=as_lists)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    ).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(1000):
        for pictures, boxes, classes, areas, crowds in loader:
            images, mean = torch.stack([*pictures]).to(args.device), torch.stack([*boxes]).to(args.device).mean(1)
            weight = torch.stack([*areas]).mean() + torch.stack([*classes]).float().mean()
            alone = 1 - torch.stack([*crowds]).float().mean()
            loss = nn.functional.mse_loss(model(images), mean) * (weight + alone).to(args.device)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
