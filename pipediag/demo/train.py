"""The built-in example of ``pipediag demo``: a small training script whose GPU, or CPU, waits for data.

It knows nothing of pipediag and can be run by itself. The dataset draws an image, crops it, blacks out random pixels
with their neighbours, converts its colours and scales it; a small convolutional network is trained on the result. One
of the transforms is written in a way that looks harmless and is not.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

IMAGE, CROP, CLASSES = 128, 64, 10


class RandomCrop:
    def __call__(self, image: Tensor) -> Tensor:
        top, left = (random.randint(0, side - CROP) for side in image.shape[1:])
        return image[:, top : top + CROP, left : left + CROP].clone()


class RandomMask:
    """Blacks out a tenth of the pixels, and the four neighbours of each: pixel by pixel, which is the trouble."""

    def __call__(self, image: Tensor) -> Tensor:
        _, height, width = image.shape
        for _ in range(height * width // 10):
            y, x = random.randrange(height), random.randrange(width)
            image[:, y, max(0, x - 1) : x + 2] = 0
            image[:, max(0, y - 1) : y + 2, x] = 0
        return image


class ConvertColor:
    def __init__(self) -> None:
        self.matrix = torch.tensor([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]])

    def __call__(self, image: Tensor) -> Tensor:
        return (self.matrix @ image.float().reshape(3, -1)).reshape(image.shape)


class Scale:
    def __call__(self, image: Tensor) -> Tensor:
        return image / 255


class Compose:
    def __init__(self, transforms: list[Callable[[Tensor], Tensor]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Tensor) -> Tensor:
        for transform in self.transforms:
            image = transform(image)
        return image


class Images(Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __init__(self, transform: Callable[[Tensor], Tensor]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.randint(0, 256, (3, IMAGE, IMAGE), dtype=torch.uint8)
        return self.transform(image), index % CLASSES


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # The workers need the other cores.
    torch.set_num_threads(1)
    loader = DataLoader(
        Images(Compose([RandomCrop(), RandomMask(), ConvertColor(), Scale()])),
        batch_size=16,
        num_workers=2,
        shuffle=True,
        pin_memory=device.type == "cuda",
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()
        if step == 200_000:
            break


if __name__ == "__main__":
    main()
