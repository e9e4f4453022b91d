"""Train a network on all cores beside workers that filter pictures with as many threads: they take its cores."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

THREADS = 4
ROUNDS = 3


class Smooth:
    """Filter a picture, with all threads that torch has."""

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        kernel = torch.full((3, 1, 9, 9), 1 / 81)
        for _ in range(ROUNDS):
            picture = nn.functional.conv2d(picture, kernel, padding=4, groups=3)
        return picture


class Pictures(Dataset):
    def __init__(self, transform: Smooth) -> None:
        self.pictures = torch.rand(32, 3, 128, 128)
        self.transform = transform

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.pictures[index % 32]), index % 10


def use_threads(worker: int) -> None:
    torch.set_num_threads(THREADS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    loader = DataLoader(
        Pictures(Smooth()), 8, shuffle=True, num_workers=args.workers, worker_init_fn=use_threads, prefetch_factor=4
    )
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
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
