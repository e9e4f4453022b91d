"""Code that asks whether a transform has returned the image that it got, and what it has put into a dict or list."""

import random

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.transforms import functional as F

from record import alive, called, files, finish, given, trainer

N, LATE = 96, 80


class Flip:
    """It changes the sample that it gets, and returns it."""

    def __call__(self, sample):
        if random.random() < 0.5:
            sample["images"][0] = F.hflip(sample["images"][0])
            if sample["index"] >= LATE:
                sample["flips"] += 1
                sample["images"].append("flipped")
        return sample


class Data(Dataset):
    def __init__(self, how):
        self.paths, self.how = files("png"), how
        self.pixels = torch.rand(N, 3, 12, 14, generator=torch.Generator().manual_seed(1))
        self.flip, self.transform = T.RandomHorizontalFlip(), T.Compose([T.RandomCrop(8), T.ToTensor()])
        self.flip_sample = Flip()
        alive.add(self)

    def __len__(self):
        return N

    def __getitem__(self, i):
        called()
        return getattr(self, self.how)(i)

    def tensor(self, i):
        x = self.flip(self.pixels[i])
        y = self.flip(x)
        return y, y is x

    def picture(self, i):
        picture = Image.open(self.paths[i % 16]).convert("RGB")
        flipped = self.flip(picture)
        return self.transform(flipped), flipped is picture

    def plain_code(self, i):
        picture = Image.open(self.paths[i % 16]).convert("RGB")
        resized = F.resize(picture, [12, 14] if i >= LATE else [9, 9])
        return F.resize(F.to_tensor(resized), [8, 8], antialias=True), resized is picture

    def sample(self, i):
        sample = {"images": [self.pixels[i], i], "index": i, "flips": 0}
        made = self.flip_sample(sample)
        return made["images"][0], sample["flips"], len(sample["images"]), made is sample


def main():
    step = trainer()
    for how in ("tensor", "picture", "plain_code", "sample"):
        loader = DataLoader(Data(how), batch_size=4, num_workers=how == "picture")
        loader = given(loader)
        for epoch in range(2):
            for batch in loader:
                step(batch)


if __name__ == "__main__":
    main()
    finish()
