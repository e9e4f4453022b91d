"""Trains from iterable datasets and prints each loss, a digest of each batch, and where the generators end."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from ordinary import classifies
from PIL import Image
from torch import nn
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info
from torchvision import transforms as T
from torchvision.transforms import functional as F

SAMPLES = 160


def picture(number: int) -> Image.Image:
    pixels = torch.randint(0, 256, (40 * 48 * 3,), generator=torch.Generator().manual_seed(number))
    return Image.frombytes("RGB", (48, 40), bytes(pixels.tolist()))


class Shard(IterableDataset):  # type: ignore[misc]
    """A range of numbered pictures, of which each worker takes its share, each transformed."""

    def __init__(self, numbers: range, transform: Callable[[Any], Any]) -> None:
        self.numbers, self.transform = numbers, transform

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for number in self.numbers[info.id :: info.num_workers]:
            yield self.transform(picture(number)), number


class Endless(Shard):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from super().__iter__()


class Mapped(IterableDataset):  # type: ignore[misc]
    """Samples of a generator function, mapped, and shuffled by a buffer."""

    def __init__(self, make: Callable[[], Iterator[Any]], *functions: Callable[[Any], Any]) -> None:
        self.make, self.functions = make, functions

    def __iter__(self) -> Iterator[Any]:
        held, random_generator = [], random.Random(3)
        for sample in self.make():
            for function in self.functions:
                sample = function(sample)
            held.append(sample)
            if len(held) > 6:
                yield held.pop(random_generator.randrange(len(held)))
        yield from held


def examples() -> Iterator[dict[str, Any]]:
    info = get_worker_info()
    for number in range(info.id, SAMPLES, info.num_workers):
        yield {"image": picture(number), "label": number}


def augment(example: dict[str, Any]) -> dict[str, Any]:
    image = F.crop(example["image"], *T.RandomCrop.get_params(example["image"], (24, 24)))
    image = F.hflip(image) if random.random() < 0.5 else image
    return {"image": F.normalize(F.to_tensor(image), [0.5] * 3, [0.2] * 3), "label": example["label"]}


def dataset(kind: str) -> Any:
    if kind == "shards":
        links = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3)]
        return ChainDataset([Shard(range(90), T.Compose(links)), Shard(range(90, SAMPLES), T.Compose(links))])
    if kind == "endless":
        return Endless(range(SAMPLES), T.Compose([T.CenterCrop(24), T.RandomHorizontalFlip(), T.ToTensor()]))
    return Mapped(examples, augment)


def main(kind: str) -> None:
    torch.manual_seed(0)
    random.seed(0)
    step = classifies(nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 4)))
    loader = DataLoader(dataset(kind), batch_size=8, num_workers=2)
    steps = 0
    while steps < 40:
        for batch in loader:
            images, labels = batch.values() if isinstance(batch, dict) else batch
            loss = step(images, labels % 4)
            print(steps, loss, hashlib.md5(images.numpy().tobytes()).hexdigest(), labels.tolist())
            steps += 1
            if steps == 40:
                break
    print(hashlib.md5(torch.get_rng_state().numpy().tobytes()).hexdigest(), random.random())


if __name__ == "__main__":
    main(sys.argv[1])
