"""Train behind a transform that is written in plain Python: two workers cannot keep up."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SPOTS = 4000


class Speckle:
    """Draw spots into an image, one pixel after another."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        values = image[0].tolist()
        for _ in range(SPOTS):
            y, x = random.randrange(len(values)), random.randrange(len(values))
            values[y][x] = 0.5 * values[y][x] + 0.5 * random.random()
        image[0] = torch.tensor(values)
        return image


class Mirror:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.flip(-1) if random.random() < 0.5 else image


class Chain:
    def __init__(self, *transforms: object) -> None:
        self.transforms = [*transforms]

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        for transform in self.transforms:
            image = transform(image)
        return image


class Images(Dataset):
    def __init__(self, transform: Chain) -> None:
        self.images = torch.rand(64, 3, 48, 48)
        self.transform = transform

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.images[index % 64].clone()), index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Images(Chain(Mirror(), Speckle())), 16, shuffle=True, num_workers=args.workers)
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
