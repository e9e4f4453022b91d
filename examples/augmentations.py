"""Classify synthetic images behind an augmentation pipeline that asks more of the CPU than it can give.

The workload of the second part of Chaim Rand's article on CUDA streams. Every sample is a random uint8
image; the workers crop half of it, enlarge the crop again, rotate it, blur it and normalise it, in float32,
with torchvision's v2 transforms. The model is a chain of strided convolutions, each halving the image, until
a single pixel is left.

    python augmentations.py             # small: seconds on a two-core CPU
    python augmentations.py --article   # the article's sizes: 256 x 256, batch 32, 8 workers

Arguments given beside --article override it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torchvision.transforms.v2 as T
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets.vision import VisionDataset

NUM_CLASSES = 10
ARTICLE = {"batch_size": 32, "workers": 8, "size": 256, "warmup": 10, "steps": 100}


class FakeImages(VisionDataset):
    """Random uint8 images, drawn anew each time one is asked for, with a random class."""

    def __init__(self, size: int, transform: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__(root="", transform=transform)
        self.size = size

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = torch.randint(0, 256, (3, self.size, self.size), dtype=torch.uint8)
        label = torch.randint(0, NUM_CLASSES, (1,))
        if self.transform:
            image = self.transform(image)
        return image, label


def augmentations(size: int) -> T.Compose:
    """What the workers do to one image."""
    return T.Compose(
        [
            T.ToDtype(torch.float32),
            T.RandomCrop(size // 2),
            T.Resize(size),
            T.RandomRotation(degrees=45.0),
            T.GaussianBlur(kernel_size=7),
            T.Normalize(mean=[0, 0, 0], std=[1, 1, 1]),
        ]
    )


def strided_cnn(size: int) -> nn.Sequential:
    """Halve the image and double the channels until one pixel is left, then classify it."""
    channels = 16
    layers: list[nn.Module] = [nn.Conv2d(3, channels, kernel_size=1)]
    while size > 1:
        layers += [nn.ReLU(inplace=True), nn.Conv2d(channels, 2 * channels, kernel_size=2, stride=2)]
        channels, size = 2 * channels, size // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, NUM_CLASSES))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A small CNN behind heavy augmentations.")
    parser.add_argument("--article", action="store_true", help="the article's sizes, unless given")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=64, help="side of the image, a power of two")
    parser.add_argument("--warmup", type=int, default=4, help="steps before the clock starts")
    parser.add_argument("--steps", type=int, default=100, help="steps that are timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.article:
        parser.set_defaults(**ARTICLE)
        args = parser.parse_args()
    if args.size < 8 or args.size & (args.size - 1):
        parser.error("--size must be a power of two, 8 or more")
    return args


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        FakeImages(args.size, augmentations(args.size)),
        batch_size=args.batch_size,
        num_workers=args.workers,
    )
    model = strided_cnn(args.size).to(device).train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    step, total = 0, args.warmup + args.steps
    start = time.perf_counter()
    while step < total:
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True).squeeze(1)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()

            step += 1
            if step == args.warmup:
                synchronize(device)
                start = time.perf_counter()
            if step == total:
                break
    synchronize(device)
    print(f"throughput: {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
