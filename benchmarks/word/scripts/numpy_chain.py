"""Segment pictures that are augmented with their masks in numpy, by classes of a library as long as albumentations.

The library is written beside the script: hundreds of transforms in one module, their methods wrapped by a decorator of
another. The workers need a small part of a step for a batch.
"""

import argparse
import importlib
import os
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHECKS = '''
import functools
def checked(method):
    """Let a method see only pictures with three axes."""
    @functools.wraps(method)
    def call(self, picture):
        assert picture.ndim == 3
        return method(self, picture)
    return call
'''
BASE = '''
"""Transforms of pictures and masks."""
import random
from checks import checked

class Base:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, sample):
        if random.random() < self.p:
            return {key: self.apply(value) for key, value in sample.items()}
        return sample
'''
OTHER = '''

class Other{number}(Base):
    """Do what none of the scripts here needs."""

    def parameters(self):
        return {{"number": {number}}}

    def describe(self):
        names = sorted(self.parameters())
        values = [self.parameters()[name] for name in names]
        lines = [f"{{name}}: {{value}}" for name, value in zip(names, values)]
        return "\\n".join(lines)

    @checked
    def apply(self, picture):
        return picture
'''
USED = """

class {name}(Base):
    @checked
    def apply(self, picture):
        return {what}
"""
TRANSFORMS = {
    "Mirror": "picture[:, ::-1]",
    "Upend": "picture[::-1]",
    "Turn": "picture.swapaxes(0, 1)",
    "Shift": "picture.take(range(-8, picture.shape[0] - 8), axis=0)",
    "Darken": "picture // 8 * 7 if picture.shape[2] == 3 else picture",
}


def write_library() -> None:
    text = BASE + "".join(OTHER.format(number=number) for number in range(400))
    text += "".join(USED.format(name=name, what=what) for name, what in TRANSFORMS.items())
    for name, content in (("checks.py", CHECKS), ("picturelib.py", text)):
        with open(f"{name}.{os.getpid()}", "w") as file:
            file.write(content)
        os.replace(f"{name}.{os.getpid()}", name)
    sys.path.insert(0, os.getcwd())


class Scenes(Dataset):
    def __init__(self, side: int, transforms: list) -> None:
        self.pictures = np.random.default_rng(1).integers(0, 256, (64, side, side, 3), dtype=np.uint8)
        self.transforms = transforms

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture = self.pictures[index % 64]
        sample = {"image": picture, "mask": picture[..., :1] // 128}
        for transform in self.transforms:
            sample = transform(sample)
        image, mask = (np.ascontiguousarray(sample[key].transpose(2, 0, 1)) for key in ("image", "mask"))
        return torch.from_numpy(image).float() / 255, torch.from_numpy(mask[0]).long()


def network(gpu: bool) -> nn.Module:
    width, depth = (192, 10) if gpu else (16, 2)
    blocks = [layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, nn.Conv2d(width, 2, 1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    gpu = args.device == "cuda"
    write_library()
    library = importlib.import_module("picturelib")
    data = Scenes(96, [getattr(library, name)() for name in TRANSFORMS])
    loader = DataLoader(data, 32 if gpu else 16, shuffle=True, num_workers=args.workers, pin_memory=gpu)
    model = network(gpu).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(1000):
        for images, masks in loader:
            images, masks = images.to(args.device), masks.to(args.device)
            loss = nn.functional.cross_entropy(model(images), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
