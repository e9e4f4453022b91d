"""Another device is torch's default one while a kept picture is read, which torchvision decodes into host memory."""

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from record import alive, called, files, finish, given, trainer


class Data(Dataset):
    def __init__(self):
        self.paths = files("large")
        self.transform = v2.Compose([v2.Resize((12, 14)), v2.ToDtype(torch.float32, scale=True)])
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        with torch.device("meta"):
            x = torchvision.io.read_image(self.paths[i])
        return self.transform(x), str(x.device)


def main():
    step = trainer()
    for workers in (0, 1):
        loader = given(DataLoader(Data(), 4, num_workers=workers))
        for epoch in range(3):
            for batch, device in loader:
                step((batch, [len(one) for one in device]))


if __name__ == "__main__":
    main()
    finish()
