"""A batch that holds a tensor twice, and views of it, which the loop writes into."""

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
        return self.transform(Image.open(self.paths[i]).convert("RGB")), float(i)


def labels_twice(samples):
    x, y = default_collate(samples)
    return {"x": x, "y": y, "same": y, "part": y[:2], "again": x}


def images_twice(samples):
    x, y = default_collate(samples)
    return {"x": x, "y": y, "first": x[0], "flat": x.flatten(1)}


def main():
    step = trainer()
    for collate in (labels_twice, images_twice):
        for workers in (0, 1):
            loader = DataLoader(Data(), batch_size=4, collate_fn=collate, num_workers=workers)
            for epoch in range(3):
                for batch in loader:
                    saw("same", batch.get("same") is batch["y"], batch.get("again") is batch["x"])
                    batch["y"].add_(1)
                    batch["x"].mul_(0.5)
                    saw("batch", batch)
                    step((batch["x"], batch["y"]))


if __name__ == "__main__":
    main()
    finish()
