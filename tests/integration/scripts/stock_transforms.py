"""Pictures that pass through transforms of torchvision only; the workers are late."""

import argparse

import numpy as np
import torch
from ordinary import classifies
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Pictures(Dataset):
    def __init__(self, transform):
        self.transform = transform
        self.pixels = np.random.default_rng(0).integers(0, 255, (16, 240, 320, 3), dtype=np.uint8)

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.pixels[index % 16])), index % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    workers = parser.parse_args().workers
    torch.set_num_threads(1)
    chain = [
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.9),
        transforms.RandomResizedCrop(32),
        transforms.ToTensor(),
    ]
    loader = DataLoader(Pictures(transforms.Compose(chain)), batch_size=4, num_workers=workers, shuffle=True)
    model = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 2))
    step = classifies(model)
    for _ in range(100):
        for images, labels in loader:
            step(images, labels)


if __name__ == "__main__":
    main()
