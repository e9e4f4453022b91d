"""Classify synthetic images whose preparation on the CPU is deliberately heavy.

The workload of Chaim Rand's article on finding input bottlenecks by caching. Every sample is a random image,
large compared with the crop that is trained on. The workers crop it, punch random holes into it, convert its
colours to YCbCr and scale its values; ResNet-18 is trained on the result.

    python caching_article.py                            # small: seconds on a two-core CPU
    python caching_article.py --article                  # the article's sizes: batch 256, 4 workers
    python caching_article.py --article --optimised      # first mend: cheap transforms
    python caching_article.py --article --optimised --raw-size 256      # second mend: a smaller raw image too

Arguments given beside --article override it. At batch 256 an epoch of 10,000 samples is 40 steps, the last
one short, so that --article passes two ends of epoch; `--samples 100000` keeps those out of the measurement.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets.vision import VisionDataset
from torchvision.models import resnet18

NUM_CLASSES = 10
RGB_TO_YCBCR = [[0.299, 0.587, 0.114], [-0.16874, -0.33126, 0.5], [0.5, -0.41869, -0.08131]]
YCBCR_OFFSET = [0.0, 128.0, 128.0]
ARTICLE = {"batch_size": 256, "workers": 4, "raw_size": 1024, "size": 256, "warmup": 10, "steps": 100}


class FakeImages(VisionDataset):
    """Random RGB pictures, drawn anew each time one is asked for, with a random class."""

    transform: Callable[[Image.Image], Tensor]

    def __init__(self, samples: int, raw_size: int, transform: Callable[[Image.Image], Tensor]) -> None:
        super().__init__(root="", transform=transform)
        self.samples = samples
        self.raw_size = raw_size

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = np.random.randint(0, 256, (self.raw_size, self.raw_size, 3), dtype=np.uint8)
        label = int(np.random.randint(0, NUM_CLASSES))
        return self.transform(Image.fromarray(pixels)), label


class RandomMask(nn.Module):
    """Black out random pixels and their four neighbours, found by a convolution in scipy."""

    def __init__(self, ratio: float = 0.25) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, image: Tensor) -> Tensor:
        from scipy.signal import convolve2d

        chosen = np.random.uniform(size=image.shape[-2:]) < self.ratio
        cross = [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
        mask = torch.from_numpy(convolve2d(chosen, cross, mode="same").astype(bool))
        image[mask.expand(3, -1, -1)] = 0
        return image


class ConvertColor(nn.Module):
    """RGB to YCbCr, one image at a time, in floating point."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.tensor(RGB_TO_YCBCR)
        self.offset = torch.tensor(YCBCR_OFFSET)

    def forward(self, image: Tensor) -> Tensor:
        image = image.to(torch.get_default_dtype())
        return torch.matmul(self.matrix, image.view(3, -1)).view(image.shape) + self.offset[:, None, None]


class Scale:
    """Bring 0..255 to 0..1."""

    def __call__(self, image: Tensor) -> Tensor:
        return image.to(torch.get_default_dtype()).div(255)


class ShiftedMask(RandomMask):
    """The same holes, widened by OR-ing the boolean mask with its shifts; the image stays uint8."""

    def forward(self, image: Tensor) -> Tensor:
        chosen = torch.rand(image.shape[-2:]) < self.ratio
        mask = chosen.clone()
        mask[1:] |= chosen[:-1]
        mask[:-1] |= chosen[1:]
        mask[:, 1:] |= chosen[:, :-1]
        mask[:, :-1] |= chosen[:, 1:]
        return image.masked_fill_(mask, 0)


class ConvertAndScaleBatch:
    """ConvertColor and Scale folded into one batched product, for uint8 batches already on the device."""

    def __init__(self, device: torch.device) -> None:
        self.matrix = torch.tensor(RGB_TO_YCBCR, device=device) / 255
        self.offset = torch.tensor(YCBCR_OFFSET, device=device)[:, None] / 255

    def __call__(self, images: Tensor) -> Tensor:
        flat = images.to(self.matrix.dtype).flatten(2)
        return torch.baddbmm(self.offset, self.matrix.expand(len(flat), 3, 3), flat).view(images.shape)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ResNet-18 behind a heavy input pipeline.")
    parser.add_argument("--article", action="store_true", help="the article's sizes, unless given")
    parser.add_argument("--optimised", action="store_true", help="cheap transforms, colours on the device")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--raw-size", type=int, default=512, help="side of the image before the crop")
    parser.add_argument("--size", type=int, default=64, help="side of the crop")
    parser.add_argument("--samples", type=int, default=10_000, help="length of an epoch")
    parser.add_argument("--warmup", type=int, default=4, help="steps before the clock starts")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.article:
        parser.set_defaults(**ARTICLE)
        args = parser.parse_args()
    return args


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    crop = T.RandomCrop(args.size)
    if args.optimised:
        transform = T.Compose([crop, T.PILToTensor(), ShiftedMask()])
    else:
        transform = T.Compose([T.PILToTensor(), crop, RandomMask(), ConvertColor(), Scale()])
    convert = ConvertAndScaleBatch(device)
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        FakeImages(args.samples, args.raw_size, transform),
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
    )
    model = resnet18(num_classes=NUM_CLASSES).to(device).train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    step, total = 0, args.warmup + args.steps
    start = time.perf_counter()
    while step < total:
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            if args.optimised:
                images = convert(images)
            loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

            step += 1
            if step == args.warmup:
                synchronize(device)
                start = time.perf_counter()
            if step == total:
                break
    synchronize(device)
    print(f"throughput: {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
