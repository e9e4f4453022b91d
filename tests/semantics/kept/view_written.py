"""A crop is a view of the dataset's own image, and Normalize writes into it: a sample changes each epoch."""

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self, transform):
        self.images = torch.rand(16, 3, 12, 14, generator=torch.Generator().manual_seed(1))
        self.transform = transform
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        return self.transform(self.images[i]), i % 2


def main():
    step = trainer()
    dataset = Data(v2.Compose([v2.RandomCrop(8), v2.Normalize([0.4], [0.5], inplace=True)]))
    loader = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()
