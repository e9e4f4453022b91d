"""Train on small crops of large JPEGs: decoding them takes the workers longer than the step."""

import argparse
import os
import random

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = (1024, 768)


def write_pictures(folder: str, count: int = 32) -> list[str]:
    """Write JPEGs that decode as slowly as photographs, and return their names."""
    names = [os.path.join(folder, f"{number}.jpg") for number in range(count)]
    if not os.path.exists(folder):
        draw, making = np.random.default_rng(1), f"{folder}.{os.getpid()}"
        os.makedirs(making)
        for name in names:
            rough = Image.fromarray(draw.integers(0, 256, (SIZE[1] // 6, SIZE[0] // 6, 3), dtype=np.uint8))
            rough.resize(SIZE, Image.Resampling.BICUBIC).save(os.path.join(making, os.path.basename(name)), quality=90)
        os.rename(making, folder)
    return names


class Crop:
    """Cut a square out of a picture."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, picture: Image.Image) -> torch.Tensor:
        left, top = random.randrange(picture.width - self.side), random.randrange(picture.height - self.side)
        cut = np.asarray(picture.crop((left, top, left + self.side, top + self.side)))
        return torch.from_numpy(cut.transpose(2, 0, 1) / np.float32(255))


class Photographs(Dataset):
    def __init__(self, names: list[str], transform: Crop) -> None:
        self.names = names
        self.transform = transform

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = Image.open(self.names[index % len(self.names)]).convert("RGB")
        return self.transform(picture), index % 10


def network(gpu: bool) -> nn.Module:
    width, depth = (128, 6) if gpu else (16, 1)
    blocks = [layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    gpu = args.device == "cuda"
    torch.set_num_threads(1)
    data = Photographs(write_pictures("photographs"), Crop(96))
    loader = DataLoader(data, 64 if gpu else 12, shuffle=True, num_workers=args.workers, pin_memory=gpu)
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
