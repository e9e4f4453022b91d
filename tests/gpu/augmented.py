"""A training script for the GPU tests of the remedy: images whose augmentations two workers cannot supply."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self) -> None:
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(96, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.GaussianBlur(15),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.25] * 3),
            ]
        )

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.arange(3 * 128 * 128).mul(index % 97 + 1).remainder(251).to(torch.uint8).reshape(3, 128, 128)
        return self.transform(image), index % 10


def moved(batch: Tensor, how: str) -> Tensor:
    if how == "numpy":
        batch = torch.from_numpy(batch.numpy())
    if how == "pin":
        batch = batch.pin_memory()
    return batch.cuda() if how == "cuda" else batch.to("cuda", non_blocking=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["to", "cuda", "numpy", "pin"], default="to")
    parser.add_argument("--steps", type=int, default=0, help="print so many losses and end; 0: train on and on")
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Images(), batch_size=32, shuffle=True, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)
    )
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for step, (images, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(moved(images, args.how)), moved(labels, args.how))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if args.steps:
                print(f"loss {loss.item():.6f}", flush=True)
                if step + 1 == args.steps:
                    return


if __name__ == "__main__":
    main()
