"""Methods of the user's own objects are transforms, and keep state."""

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from record import alive, called, finish, trainer


class Augment:
    def __init__(self):
        self.seen = 0

    def flipped(self, image):
        called()
        self.seen += 1
        return F.horizontal_flip(image) if self.seen % 3 else image

    def brightened(self, image):
        called()
        return F.adjust_brightness(image, 1 + self.seen % 4 / 8)


class Data(Dataset):
    def __init__(self):
        augment = Augment()
        self.transform = v2.Compose(
            [
                v2.RandomVerticalFlip(),
                v2.PILToTensor(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Lambda(augment.brightened),
                augment.flipped,
            ]
        )
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = Image.fromarray(np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8))
        return self.transform(x), i % 2


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()
