"""Train a head on a frozen encoder, as slow as inference: four workers with light transforms are far ahead of it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2


class Pictures(Dataset):
    def __init__(self, side: int, transform: v2.Transform) -> None:
        self.pictures = torch.randint(0, 256, (64, 3, side, side), dtype=torch.uint8)
        self.transform = transform

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.pictures[index % 64]), index % 10


def encoder(gpu: bool) -> nn.Module:
    width, depth = (384, 12) if gpu else (64, 5)
    blocks = [layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.MaxPool2d(2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    gpu = args.device == "cuda"
    torch.set_num_threads(1)
    side = 96 if gpu else 64
    transform = v2.Compose(
        [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
    )
    loader = DataLoader(
        Pictures(side, transform), 64 if gpu else 16, shuffle=True, num_workers=args.workers, pin_memory=gpu
    )
    frozen = encoder(gpu).to(args.device).eval().requires_grad_(False)
    head = nn.Linear(384 if gpu else 64, 10).to(args.device)
    optimizer = torch.optim.SGD(head.parameters(), 0.01)
    for _ in range(1000):
        for images, labels in loader:
            with torch.no_grad():
                features = frozen(images.to(args.device))
            loss = nn.functional.cross_entropy(head(features), labels.to(args.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
