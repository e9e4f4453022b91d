"""Train a segmentation decoder on the features of a frozen encoder.

The workload of the first part of Chaim Rand's article on CUDA streams. Every sample is a random uint8 image
and a random class for each of its pixels, with no transforms. The encoder (pairs of 3 x 3 convolutions, each
pair followed by pooling) only runs forwards, without gradients; the decoder (transposed convolutions) is
trained. The encoder needs nothing that the decoder learns, so the next batch could be encoded while this one
is decoded; here they take turns.

    python frozen_encoder.py             # small: seconds on a two-core CPU
    python frozen_encoder.py --article   # the article's sizes: 256 x 256, batch 8, 8 workers

Arguments given beside --article override it.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets.vision import VisionDataset

NUM_CLASSES = 10
STAGES = 5
ARTICLE = {"batch_size": 8, "workers": 8, "size": 256, "width": 32, "warmup": 10, "steps": 100}


class FakeSegmentation(VisionDataset):
    """Random uint8 images and label maps, drawn anew each time a pair is asked for."""

    def __init__(self, size: int) -> None:
        super().__init__(root="")
        self.size = size

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = torch.randint(0, 256, (3, self.size, self.size), dtype=torch.uint8)
        labels = torch.randint(0, NUM_CLASSES, (self.size, self.size))
        return image, labels


def make_encoder(width: int) -> nn.Sequential:
    """Five times: two convolutions, then half the side; the channels double from `width` on."""
    layers: list[nn.Module] = []
    channels = 3
    for stage in range(STAGES):
        for _ in range(2):
            out = width << stage
            layers += [nn.Conv2d(channels, out, kernel_size=3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def make_decoder(width: int) -> nn.Sequential:
    """Five times: twice the side and half the channels; then a score per class and pixel."""
    layers: list[nn.Module] = []
    channels = width << (STAGES - 1)
    for _ in range(STAGES):
        out = channels // 2
        layers += [nn.ConvTranspose2d(channels, out, kernel_size=2, stride=2), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.Conv2d(channels, NUM_CLASSES, kernel_size=1))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A frozen encoder and a decoder that is trained.")
    parser.add_argument("--article", action="store_true", help="the article's sizes, unless given")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=64, help="side of the image, a multiple of 32")
    parser.add_argument("--width", type=int, default=8, help="channels of the encoder's first stage")
    parser.add_argument("--warmup", type=int, default=4, help="steps before the clock starts")
    parser.add_argument("--steps", type=int, default=200, help="steps that are timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.article:
        parser.set_defaults(**ARTICLE)
        args = parser.parse_args()
    if args.size < 1 or args.size % 2**STAGES:
        parser.error(f"--size must be a multiple of {2**STAGES}")
    if args.width < 2:
        parser.error("--width must be 2 or more")
    return args


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        FakeSegmentation(args.size),
        batch_size=args.batch_size,
        num_workers=args.workers,
    )
    encoder = make_encoder(args.width).to(device).eval().requires_grad_(False)
    decoder = make_decoder(args.width).to(device).train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.001)

    step, total = 0, args.warmup + args.steps
    start = time.perf_counter()
    while step < total:
        for images, labels in loader:
            images = images.to(device, non_blocking=True).float()
            labels = labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.no_grad():
                features = encoder(images)
            loss = criterion(decoder(features), labels)
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
