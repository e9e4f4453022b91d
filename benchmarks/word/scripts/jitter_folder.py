"""Train on an ImageFolder with the usual chain of torchvision, ColorJitter in it: two workers cannot keep up."""

import argparse
import os

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, RandomSampler
from torchvision.datasets import ImageFolder


def write_pictures(root: str, count: int = 48) -> None:
    """Write JPEGs of 320 x 240 pixels in two classes."""
    if os.path.exists(root):
        return
    random, making = np.random.default_rng(1), f"{root}.{os.getpid()}"
    for number in range(count):
        folder = os.path.join(making, str(number % 2))
        os.makedirs(folder, exist_ok=True)
        rough = Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8))
        rough.resize((320, 240), Image.Resampling.BICUBIC).save(os.path.join(folder, f"{number}.jpg"), quality=90)
    os.rename(making, root)


def network(gpu: bool) -> nn.Module:
    width, depth = (128, 6) if gpu else (16, 1)
    blocks = [layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    gpu = args.device == "cuda"
    torch.set_num_threads(1)
    write_pictures("pictures")
    transform = T.Compose(
        [
            T.ColorJitter(0.4, 0.4, 0.4, 0.1),
            T.RandomResizedCrop(96),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    data = ImageFolder("pictures", transform)
    sampler = RandomSampler(data, replacement=True, num_samples=20_000)
    loader = DataLoader(data, 64 if gpu else 16, sampler=sampler, num_workers=args.workers, pin_memory=gpu)
    model = network(gpu).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(1000):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(args.device)), labels.to(args.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
