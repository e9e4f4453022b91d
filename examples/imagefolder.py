"""Train an ImageNet-style classifier on a folder of JPEG files.

The everyday recipe: `ImageFolder`, PIL decoding and augmentation in the workers, a torchvision model from
scratch. On the first run the script writes its own pictures: smooth random fields of about 500 x 375 pixels
that compress like photographs, the same ones every time. A folder given with --data that has something in it
already is used as it is.

Small, seconds on a two-core CPU:

    python imagefolder.py

On a GPU, with epochs as long as ImageNet's, each picture being taken 100 times (0.9 GB of them are written once, a
minute's work for one core):

    python imagefolder.py --model resnet50 --amp --channels-last --batch-size 256 --workers 15 \\
        --size 224 --images 12800 --repeats 100 --warmup 10 --steps 100

The run ends after --steps timed steps, over as many epochs as that takes, or after --epochs if sooner.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import get_model

CLASSES = ("birch", "heath", "shore", "slate")


def picture(seed: int) -> Image.Image:
    """Soft random shapes: noise on ever finer grids, the finer the fainter, all enlarged smoothly."""
    rng = np.random.default_rng(seed)
    width, height = int(rng.integers(400, 601)), int(rng.integers(300, 451))
    image = Image.new("RGB", (width, height), "gray")
    for cells, opacity in ((4, 1.0), (16, 0.4), (64, 0.2), (192, 0.25)):
        noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        image = Image.blend(image, noise.resize((width, height), Image.Resampling.BICUBIC), opacity)
    return image


def write_pictures(root: Path, count: int) -> None:
    """Fill `root` with `count` JPEG files in one folder per class; it appears only once it is complete."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        draft = Path(scratch) / root.name
        for name in CLASSES:
            (draft / name).mkdir(parents=True)

        def write(index: int) -> None:
            picture(index).save(draft / CLASSES[index % len(CLASSES)] / f"{index:06d}.jpg", quality=90)

        with ThreadPoolExecutor() as pool:
            list(pool.map(write, range(count)))
        draft.rename(root)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A torchvision classifier on a folder of JPEG files.")
    parser.add_argument("--data", type=Path, help="folder of pictures (default: a temporary one)")
    parser.add_argument("--images", type=int, default=256, help="pictures to write where there are none")
    parser.add_argument("--repeats", type=int, default=1, help="times that each picture is taken in an epoch")
    parser.add_argument("--model", default="resnet18", help="name of a torchvision classification model")
    parser.add_argument("--amp", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--channels-last", action="store_true", help="channels-last memory format")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=96, help="side of the crop")
    parser.add_argument("--epochs", type=int, help="end after so many epochs, even if steps are left")
    parser.add_argument("--warmup", type=int, default=4, help="steps before the clock starts")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.images < len(CLASSES):
        parser.error(f"--images must be {len(CLASSES)} or more, one for each class")
    if args.data is None:
        args.data = Path(tempfile.gettempdir()) / f"imagefolder-example-{args.images}"
    return args


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    if not args.data.is_dir() or not any(args.data.iterdir()):
        write_pictures(args.data, args.images)
    transform = T.Compose(
        [
            T.RandomResizedCrop(args.size),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    dataset = ImageFolder(str(args.data), transform)
    dataset.samples *= args.repeats
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
    )
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = get_model(args.model, weights=None, num_classes=len(dataset.classes))
    model = model.to(device, memory_format=layout).train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    step, total, epoch = 0, args.warmup + args.steps, 0
    start = time.perf_counter()
    while step < total and epoch != args.epochs:
        for images, labels in loader:
            images = images.to(device, non_blocking=True).contiguous(memory_format=layout)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.amp):
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
        epoch += 1
    synchronize(device)
    if step <= args.warmup:
        raise SystemExit(f"the run ended after {step} steps, before the clock started: give more --epochs")
    print(f"throughput: {(step - args.warmup) / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
