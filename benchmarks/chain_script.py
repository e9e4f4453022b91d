"""The demo's workload with eight transforms: as a chain, or called one by one in a single function."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pipediag.demo.train import CLASSES, Compose, ConvertColor, Images, RandomCrop, RandomMask, Scale


class RandomFlip:
    def __call__(self, image: Tensor) -> Tensor:
        return image.flip(-1) if random.random() < 0.5 else image


class Noise:
    def __call__(self, image: Tensor) -> Tensor:
        return image + torch.randn_like(image)


class Clamp:
    def __call__(self, image: Tensor) -> Tensor:
        return image.clamp(0, 255)


class Shift:
    def __call__(self, image: Tensor) -> Tensor:
        return image - 0.5


CHAIN = [RandomCrop(), RandomFlip(), RandomMask(), ConvertColor(), Noise(), Clamp(), Scale(), Shift()]


def whole_chain(image: Tensor) -> Tensor:
    for number in range(len(CHAIN)):
        image = CHAIN[number](image)
    return image


def loader_and_step(whole: bool) -> tuple[DataLoader[tuple[Tensor, Tensor]], Callable[[list[Tensor]], None]]:
    """Return the loader, with ``whole`` as one function, and the training step for its batches."""
    torch.set_num_threads(1)
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        Images(whole_chain if whole else Compose(CHAIN)), batch_size=16, num_workers=2, shuffle=True
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()

    def step(batch: list[Tensor]) -> None:
        images, labels = batch
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()

    return loader, step
