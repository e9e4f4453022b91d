"""Decoding costs far more than the step: an analysis keeps a remedy and writes a plan."""

import random

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, trainer


class Data(Dataset):
    def __init__(self):
        self.paths = files("large") * 10
        self.transform = T.Compose([T.Resize((12, 14)), T.RandomHorizontalFlip(), T.ToTensor()])
        alive.add(self)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        called()
        return self.transform(Image.open(self.paths[i]).convert("RGB")), random.randint(0, 9)


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()
