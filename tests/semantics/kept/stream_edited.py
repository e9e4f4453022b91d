"""An iterable dataset that is offloaded, and a chain of transforms that the loop makes longer."""

import torch
from torch.utils.data import DataLoader, IterableDataset
from torchvision import transforms as T

from record import alive, called, finish, given, trainer


class Data(IterableDataset):
    def __init__(self, transform):
        self.pixels, self.transform = torch.rand(16, 3, 8, 8), transform
        alive.add(self)

    def __iter__(self):
        for i in range(16):
            called()
            yield self.transform(self.pixels[i]), i % 2


def main():
    step = trainer()
    dataset = Data(T.Compose([T.RandomHorizontalFlip(), T.Normalize([0.5] * 3, [0.5] * 3)]))
    loader = DataLoader(dataset, batch_size=4)
    loader = given(loader)
    for epoch in range(3):
        for number, batch in enumerate(loader):
            step(batch)
            if number == 1 and epoch < 2:
                dataset.transform.transforms.append(T.RandomVerticalFlip())


if __name__ == "__main__":
    main()
    finish()
