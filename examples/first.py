"""Train a small network on noisy pictures."""

import argparse
import random

import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()


class Speckle:
    """Sets one pixel in ten to black."""

    def __call__(self, image):
        _, height, width = image.shape
        for _ in range(height * width // 10):
            image[:, random.randrange(height), random.randrange(width)] = 0
        return image


class Pictures(Dataset):
    def __init__(self):
        self.transform = Speckle()

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        image = torch.rand(3, 96, 96, generator=torch.Generator().manual_seed(index))
        return self.transform(image), index % 10


torch.set_num_threads(1)  # the cores are for the workers
model = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(3 * 12 * 12, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Pictures(), batch_size=16, num_workers=args.workers, shuffle=True)
for _ in range(args.epochs):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
