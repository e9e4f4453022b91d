"""Loaders whose iterators are not torch's own change each batch: by a class, around torch's, and by a patch."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import dataloader
from torchvision import transforms as T

from record import alive, called, files, finish, given, trainer


class Data(Dataset):
    def __init__(self):
        self.paths = files("png")
        self.transform = T.Compose([T.RandomCrop(8), T.RandomHorizontalFlip(), T.ToTensor()])
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        return self.transform(Image.open(self.paths[i]).convert("RGB")), i


def halved(batch):
    called()
    pixels, labels = batch
    return pixels * 0.5, labels


class HalvingOne(dataloader._SingleProcessDataLoaderIter):
    def __next__(self):
        return halved(super().__next__())


class HalvingMany(dataloader._MultiProcessingDataLoaderIter):
    def __next__(self):
        return halved(super().__next__())


class OfOwnClass(DataLoader):
    def _get_iterator(self):
        return HalvingMany(self) if self.num_workers else HalvingOne(self)


class Around(DataLoader):
    def _get_iterator(self):
        return map(halved, super()._get_iterator())


class Iterating(DataLoader):
    def __iter__(self):
        return map(halved, super().__iter__())


def main():
    step = trainer()
    for kind in (DataLoader, Iterating, OfOwnClass, Around):
        for workers in (0, 2):
            loader = given(kind(Data(), 4, shuffle=True, num_workers=workers))
            for epoch in range(3):
                for batch in loader:
                    step(batch)
    following = dataloader._BaseDataLoaderIter.__next__
    dataloader._BaseDataLoaderIter.__next__ = lambda self: halved(following(self))
    for workers in (0, 2):
        loader = DataLoader(Data(), 4, shuffle=True, num_workers=workers)
        for epoch in range(3):
            for batch in loader:
                step(batch)


if __name__ == "__main__":
    main()
    finish()
