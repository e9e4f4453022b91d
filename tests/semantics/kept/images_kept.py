"""A dataset and a collate function that keep the images of the loop's batches, into which both write."""

import random

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import transforms as T
from torchvision.transforms import v2

from record import alive, called, files, finish, saw, trainer


class Data(Dataset):
    def __init__(self):
        self.paths, self.kept, self.before = files("png"), {}, None
        to_float = v2.ToDtype(torch.float32, scale=True)
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.ToImage(), to_float])
        alive.add(self)

    def __len__(self):
        return 16

    def image(self, i):
        return self.transform(Image.open(self.paths[i]).convert("RGB"))

    def __getitem__(self, i):
        called()
        if i % 2 and i not in self.kept:
            self.kept[i] = self.image(i)
        x = self.kept[i] if i % 2 else self.image(i)
        before, self.before = x if self.before is None else self.before, x
        return {"x": x, "before": before}


class Collate:
    batch = part = None

    def __call__(self, samples):
        self.batch = default_collate(samples)
        self.part = self.batch["x"][:2]
        return self.batch["x"], samples[0]["before"].permute(1, 2, 0)


class Bank:
    """Its images take a part from one that an earlier batch may hold."""

    def __init__(self):
        self.kept = []

    def __call__(self, x):
        self.kept = [*self.kept[-2:], x]
        if len(self.kept) < 3 or random.random() < 0.5:
            return x
        x = x.clone()
        x[:, 2:6, 2:6] = self.kept[0][:, 2:6, 2:6]
        return x


def main():
    step = trainer()
    data = Data()
    for epoch in range(3):
        for batch in DataLoader(data, batch_size=4, collate_fn=list, shuffle=True):
            for sample in batch:
                sample["x"].mul_(0.9)
            data.before.add_(0.1)
            saw("kept", batch, *(one.as_subclass(torch.Tensor) for one in (data.before, *data.kept.values())))
            step((torch.stack([sample["x"] for sample in batch]), torch.zeros(4)))
    collate = Collate()
    for epoch in range(3):
        for x, before in DataLoader(Data(), batch_size=4, collate_fn=collate):
            x.mul_(0.5)
            collate.batch["x"].add_(0.1)
            saw("kept", x, before, *(one.as_subclass(torch.Tensor) for one in (collate.batch["x"], collate.part)))
            step((x, torch.zeros(4)))
    data = Data()
    data.transform = T.Compose([T.RandomCrop(9), T.ToTensor(), Bank()])
    for epoch in range(3):
        for batch in DataLoader(data, batch_size=4, collate_fn=list):
            for sample in batch:
                sample["x"].mul_(0.9)
            step((torch.stack([sample["x"] for sample in batch]), torch.zeros(4)))


if __name__ == "__main__":
    main()
    finish()
