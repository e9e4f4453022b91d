"""Train without labels on ten views of each picture, two large and eight small: two workers cannot keep up."""

import argparse

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Views:
    """Make ten views of a picture."""

    def __init__(self, large: int, small: int) -> None:
        colours = [
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            T.RandomGrayscale(0.2),
            T.ToTensor(),
            T.Normalize([0.5] * 3, [0.25] * 3),
        ]
        self.large = T.Compose([T.RandomResizedCrop(large, (0.4, 1.0)), *colours])
        self.small = T.Compose([T.RandomResizedCrop(small, (0.05, 0.4)), *colours])

    def __call__(self, picture: Image.Image) -> list[torch.Tensor]:
        return [*(self.large(picture) for _ in range(2)), *(self.small(picture) for _ in range(8))]


class Pictures(Dataset):
    def __init__(self, side: int, transform: Views) -> None:
        self.pictures = np.random.default_rng(1).integers(0, 256, (64, side, side, 3), dtype=np.uint8)
        self.transform = transform

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return self.transform(Image.fromarray(self.pictures[index % 64]))


def network(gpu: bool) -> nn.Module:
    width, depth = (160, 4) if gpu else (16, 1)
    blocks = [layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 32)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    gpu = args.device == "cuda"
    torch.set_num_threads(1)
    side, views = (256, Views(160, 96)) if gpu else (160, Views(96, 48))
    loader = DataLoader(Pictures(side, views), 32 if gpu else 8, shuffle=True, num_workers=args.workers, pin_memory=gpu)
    model = network(gpu).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(1000):
        for views in loader:
            found = [model(view.to(args.device)).softmax(1) for view in views]
            target = (found[0] + found[1]).detach() / 2
            loss = -sum((target * one.clamp_min(1e-6).log()).sum(1).mean() for one in found)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
