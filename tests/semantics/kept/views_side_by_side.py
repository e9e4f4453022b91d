"""Two views of each sample, side by side in one memory: the loop writes into one."""

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import v2

from record import alive, called, files, finish, saw, trainer


class Data(Dataset):
    def __init__(self):
        self.paths = files("png")
        to_float = v2.ToDtype(torch.float32, scale=True)
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.ToImage(), to_float])
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        picture = Image.open(self.paths[i]).convert("RGB")
        return torch.stack([self.transform(picture), self.transform(picture)]), i


def collate(samples):
    x, y = default_collate(samples)
    return x[:, 0], x[:, 1], y


def main():
    step = trainer()
    for workers in (0, 1):
        loader = DataLoader(Data(), batch_size=4, collate_fn=collate, num_workers=workers)
        for epoch in range(3):
            for one, other, y in loader:
                one.mul_(0.5)
                saw("views", one, other)
                step((other, y))


if __name__ == "__main__":
    main()
    finish()
