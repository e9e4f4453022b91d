"""A joint transform of a picture and its target."""

import random

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as TF

from record import alive, called, files, finish, trainer


class Joint:
    def __call__(self, x, y):
        if random.random() < 0.5:
            x, y = TF.hflip(x), 1 - y
        return TF.to_tensor(TF.rotate(x, random.uniform(-20, 20))), y


class Data(Dataset):
    def __init__(self):
        self.paths, self.joint = files("jpeg"), Joint()
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x, y = self.joint(Image.open(self.paths[i]).convert("RGB"), i % 2)
        return x, y


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4, num_workers=2)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()
