"""A call that the loop replaces, after which no image is recorded, and a collate function that counts."""

import numpy as np
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import functional as F

from record import alive, called, finish, saw, trainer


original = F.hflip


def turned(image):
    return original(image)


class Data(Dataset):
    def __init__(self):
        self.pixels = np.random.default_rng(1).integers(0, 256, (16, 12, 14, 3), dtype=np.uint8)
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        return F.pil_to_tensor(F.hflip(Image.fromarray(self.pixels[i]))), i % 2


class Collate:
    calls = 0

    def __call__(self, samples):
        self.calls += 1
        return *default_collate(samples), self.calls


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4, collate_fn=Collate())
    for epoch in range(3):
        if epoch == 1:
            torchvision.transforms.functional.hflip = turned
        for batch in loader:
            saw("collated", batch[2])
            step(batch[:2])


if __name__ == "__main__":
    main()
    finish()
