"""The default dtype changes between epochs: pixels stay those of the plain conversion."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2 as T

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self):
        pixels = np.random.default_rng(1).integers(0, 256, (16, 3, 12, 14), dtype=np.uint8)
        self.pixels = torch.from_numpy(pixels)
        self.transform = T.Compose([T.ToDtype(torch.float32, scale=True), T.RandomVerticalFlip()])
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        return self.transform(self.pixels[i]), i % 3


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4, num_workers=1)
    for epoch in range(3):
        torch.set_default_dtype(torch.float64 if epoch == 2 else torch.float32)
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()
