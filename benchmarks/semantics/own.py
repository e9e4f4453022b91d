"""What invented scripts define themselves: each class or function is pasted into the scripts that name it."""

from __future__ import annotations

import random
from collections import namedtuple
from functools import cache

import numpy as np
import torch
from PIL import Image, ImageChops, ImageEnhance, ImageOps
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info
from torchvision.transforms import functional as TF

from .record import alive, called

FACTOR = 1.0
Sample = namedtuple("Sample", "x y")


def pixels(n):
    return np.random.default_rng(1).integers(0, 256, (n, 12, 14, 3), dtype=np.uint8)


@cache
def opened(path):
    called()
    return Image.open(path).convert("RGB")


def moved(x, level):
    if isinstance(x, Image.Image):
        return ImageChops.offset(x, level, 0)
    return [torch.roll(view, level, -1) for view in x] if isinstance(x, list) else torch.roll(x, level, -1)


# Transforms of pictures, of tensors, and from one to the other.


class Mirror:
    def __call__(self, image):
        return ImageOps.mirror(image) if random.random() < 0.5 else image


class Enhance:
    def __call__(self, image):
        image = ImageEnhance.Brightness(image).enhance(random.uniform(0.5, 1.5))
        return ImageEnhance.Contrast(image).enhance(random.uniform(0.5, 1.5))


class Tilt:
    def __call__(self, image):
        return image.rotate(np.random.uniform(-15, 15), Image.Resampling.BILINEAR)


class Paste:
    def __call__(self, image):
        image = image.copy()
        image.paste((random.randint(0, 255), 0, 0), (2, 2, 5, 5))
        image.putpixel((0, 0), (1, 2, 3))
        return image


class Thumbnail:
    def __call__(self, image):
        image.thumbnail((9, 9))
        return image


class Turn:
    def __call__(self, x):
        if random.random() < 0.5:
            x = TF.hflip(x)
        return TF.rotate(x, random.uniform(-20, 20))


class ToArray:
    def __init__(self, strided=False):
        self.strided = strided

    def __call__(self, image):
        x = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)
        return x if self.strided else x.contiguous()


class ToFloat:
    def __call__(self, x):
        return x.float() / 255


class Scale:
    def __init__(self, factor=0.5):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class Centre:
    def __call__(self, x):
        x -= x.mean()
        return x


class Noise:
    def __call__(self, x):
        return x + 0.1 * torch.randn_like(x)


class NumpyNoise:
    def __call__(self, x):
        return x + torch.from_numpy(np.random.normal(0, 0.1, x.shape).astype(np.float32))


class Roll:
    def __call__(self, x):
        return torch.roll(x, random.randint(0, 3), -1)


class Cutout:
    def __call__(self, x):
        top = int(torch.randint(0, 5, (1,)))
        x[:, top : top + 3] = 0
        return x


class Counted:
    seen = 0

    def __call__(self, x):
        called()
        self.seen += 1
        return x + self.seen / 64


class Level:
    def __call__(self, x):
        return x * FACTOR


class Stack:
    def __call__(self, crops):
        return torch.stack(crops)


class OwnGenerator:
    def __init__(self):
        self.random, self.torch = random.Random(3), torch.Generator().manual_seed(4)

    def __call__(self, x):
        return x * self.random.random() + torch.rand(1, generator=self.torch)


# What calls them.


class Chain:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class Joint:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x, y):
        if random.random() < 0.5:
            x, y = TF.hflip(x), y + 1
        for transform in self.transforms:
            x = transform(x)
        return x, y


class Wrapped(Dataset):
    def __init__(self, base, transform):
        self.base, self.transform = base, transform
        alive.add(self)

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        x, y = self.base[i]
        return self.transform(x), y


class Transformed:
    def __init__(self, transform):
        self.transform = transform

    def __call__(self, samples):
        return default_collate([(self.transform(x), y) for x, y in samples])


# Loaders.


class OwnSampler(Sampler):
    def __init__(self, n):
        self.n, self.epoch = n, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.n).tolist())

    def __len__(self):
        return self.n


class StatefulSampler(OwnSampler):
    def __iter__(self):
        self.epoch += 1
        return super().__iter__()


class DrawnSampler(OwnSampler):
    def __iter__(self):
        for i in random.sample(range(self.n), self.n):
            np.random.rand()
            yield i


class Counting(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            called()
            yield batch


def note_on_dataset(number):
    get_worker_info().dataset.note = number + 1


def seed_worker(number):
    np.random.seed(torch.initial_seed() % 2**31 + number)


def collate_reversed(samples):
    called()
    return default_collate(samples[::-1])


def collate_listed(samples):
    return list(samples)


def counting_collate():
    calls = 0

    def collate(samples):
        nonlocal calls
        calls += 1
        return {"samples": default_collate(samples), "calls": calls}

    return collate


class Collate:
    calls = 0

    def __call__(self, samples):
        self.calls += 1
        return {"samples": default_collate(samples), "calls": self.calls}


def first_tensor(x):
    while not isinstance(x, torch.Tensor):
        x = x[0] if isinstance(x, (list, tuple)) else next(iter(x.values()))
    return x


def collate_in_place(samples):
    for n, sample in enumerate(samples):
        first_tensor(sample)[0, 0, 0] = n
    return default_collate(samples)
