"""Modes of torch's that follow each call, in the dataset and in a transform, see what they see without pipediag."""

import torch
from PIL import Image
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as F, v2

from record import alive, called, files, finish, given, trainer


class Functions(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


class PlainCode(Dataset):
    """A resize that has nothing to do, and arithmetic with what it returns."""

    def __init__(self, mode):
        self.paths, self.mode = files("png"), mode
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        picture = Image.open(self.paths[i]).convert("RGB")
        with self.mode() as mode:
            x = F.to_tensor(F.resize(picture, [11, 10]))
            x = 2 * F.resize(x, [11, 10], antialias=True)
        return x, i, mode.calls


class Counted:
    def __init__(self, mode, transform):
        self.mode, self.transform, self.calls = mode, transform, 0

    def __call__(self, x):
        with self.mode() as mode:
            x = self.transform(x)
        self.calls = mode.calls
        return x


class Data(Dataset):
    def __init__(self, mode, inside):
        self.paths, self.mode = files("png"), mode
        flips = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()])
        links = [v2.RandomCrop(8), v2.ToImage(), flips, v2.ToDtype(torch.float32, scale=True)]
        if inside:
            links[2] = Counted(mode, flips)
        self.transform = v2.Compose(links) if inside else Counted(mode, v2.Compose(links))
        self.counted = links[2] if inside else self.transform
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        return self.transform(Image.open(self.paths[i]).convert("RGB")), i, self.counted.calls


def main():
    step = trainer()
    for mode in (Functions, Operators):
        loader = given(DataLoader(PlainCode(mode), None))
        for epoch in range(2):
            for batch in loader:
                step(batch)
        for inside in (False, True):
            for workers in (0, 1):
                loader = given(DataLoader(Data(mode, inside), 4, num_workers=workers))
                for epoch in range(2):
                    for batch in loader:
                        step(batch)


if __name__ == "__main__":
    main()
    finish()
