"""Samples made in inference mode, written into, and marked as such where there is no worker."""

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.transforms import functional as F

from record import alive, called, files, finish, given, saw, trainer


class Data(Dataset):
    def __init__(self):
        self.paths = files("png")
        self.transform = T.Compose([T.RandomHorizontalFlip(), T.RandomRotation(9)])
        self.convert = T.Compose([T.RandomVerticalFlip(), T.ToTensor()])
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        picture = Image.open(self.paths[i]).convert("RGB")
        with torch.inference_mode(i % 2 == 1):
            x = F.to_tensor(picture)
            y = self.transform(x)
            if i >= 9:
                x.zero_()
            return y, self.convert(picture), i


def main():
    step = trainer()
    for workers in (0, 1):
        loader = given(DataLoader(Data(), None, num_workers=workers))
        for epoch in range(2):
            for x, y, i in loader:
                saw(x.is_inference(), y.is_inference())
                step((torch.stack([x, y]).clone(), [i, i]))


if __name__ == "__main__":
    main()
    finish()
