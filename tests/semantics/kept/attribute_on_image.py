"""Attributes that code gives to an image, before and after its transforms."""

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from record import alive, called, finish, saw, trainer


class ByNumber:
    def __call__(self, x):
        return x * (1 + getattr(x, "number", 0) / 16)


class Data(Dataset):
    def __init__(self, notes):
        self.notes = notes
        self.images = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        links = [v2.RandomHorizontalFlip(), v2.Normalize((0.5,) * 3, (0.5,) * 3)]
        self.transform = v2.Compose(links if notes else [ByNumber(), *links])
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = self.images[i].clone()
        x.number = i
        x = self.transform(x)
        if self.notes:
            x.note = str(i)
        return x


def main():
    step = trainer()
    for notes in (False, True):
        loader = DataLoader(Data(notes), batch_size=4, collate_fn=list)
        for epoch in range(4):
            for batch in loader:
                saw(
                    "notes",
                    [getattr(x, "note", "") for x in batch],
                    [getattr(x.contiguous(), "note", "") for x in batch],
                )
                step((torch.stack(batch), torch.ones(4)))


if __name__ == "__main__":
    main()
    finish()
