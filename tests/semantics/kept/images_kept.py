"""A dataset and a collate function that keep the images of the loop's batches, into which both write."""

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
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
    batch = None

    def __call__(self, samples):
        self.batch = default_collate(samples)
        return self.batch["x"], samples[0]["before"]


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
            saw("kept", x, before, collate.batch["x"].as_subclass(torch.Tensor))
            step((x, torch.zeros(4)))


if __name__ == "__main__":
    main()
    finish()
