"""Train ResNet-50 on JPEGs with the plain loader, with transforms on the GPU, and with JPEG decoding there as well.

    python -m benchmarks.decode                    # on a GPU: steps per second with 4, 8 and 15 workers
    python -m benchmarks.decode --forms plain exact decoded dali v2 kornia    # and of other libraries, if installed

The pipeline is the usual one for ImageNet: ``ImageFolder``, RandomResizedCrop, flip, ToTensor, Normalize, batches of
256, bf16. All forms are measured in one process. The ceiling is the same loop on one batch that stays on the GPU.
Forms that are not asked for keep their figures in the file, if all circumstances are the same.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms as T

from pipediag.remedy import offload

from .common import RESULTS, kept_rows, load, save
from .decode_peers import MEAN, PEERS, STD, endless

_CLASSES = 16
FORMS = ("plain", "exact", "decoded")  # the others are the peers


def photo(rng: np.random.Generator, width: int, height: int) -> PIL.Image.Image:
    """Return an RGB image with smooth parts and noise."""
    coarse = PIL.Image.fromarray(rng.integers(0, 256, (height // 12, width // 12, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((width, height), PIL.Image.Resampling.BICUBIC)).astype(np.int16)
    pixels = (pixels + rng.integers(-10, 11, pixels.shape)).clip(0, 255)
    return PIL.Image.fromarray(pixels.astype(np.uint8))


def write_photos(folder: Path, number: int) -> None:
    """Write JPEGs of about 500 x 375 pixels and 100 KB."""
    for i in range(number):
        rng = np.random.default_rng(i)
        width, height = int(rng.integers(430, 570)), int(rng.integers(330, 420))
        path = folder / f"class{i % _CLASSES:02}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        photo(rng, width, height).save(path, quality=88)


def loader_of(folder: Path, batch: int, workers: int) -> DataLoader[Any]:
    chain = T.Compose(
        [
            T.RandomResizedCrop(224),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )
    return endless(folder, batch, workers, chain)


def training(device: torch.device) -> Callable[[Any], None]:
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        images, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(images.to(memory_format=torch.channels_last))
            loss = torch.nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def rate(batches: Iterator[Any], step: Callable[[Any], None], warm: int, steps: int) -> float:
    """Return steps per second after ``warm`` steps, which use up the workers' queues."""
    for _ in range(warm):
        step(next(batches))
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step(next(batches))
    torch.cuda.synchronize()
    return steps / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8, 15])
    parser.add_argument("--forms", nargs="+", choices=(*FORMS, *PEERS), default=FORMS)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--photos", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    device = torch.device("cuda")
    step = training(device)
    fixed = (torch.randn(args.batch, 3, 224, 224, device=device), torch.randint(0, 1000, (args.batch,), device=device))
    facts = {"batch": args.batch, "photos": args.photos}
    forms = {row["workers"]: row["forms"] for row in kept_rows(load("decode", args.out), **facts)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_photos(folder, args.photos)
        for workers in args.workers:
            ceiling = round(rate(iter(lambda: fixed, None), step, 10, args.steps), 2)
            for form in args.forms:
                found: dict[str, Any] = {"ceiling": ceiling}
                if form in PEERS:
                    batches = PEERS[form](folder, args.batch, workers)
                elif form == "plain":
                    batches = iter(loader_of(folder, args.batch, workers))
                else:
                    loader = loader_of(folder, args.batch, workers)
                    source = offload(loader, device, approximate=form == "decoded", samples=16)
                    found["plan"] = str(source.plan).splitlines()
                    batches = iter(source)
                try:
                    # Each worker and each queue begins full.
                    found["rate"] = round(rate(batches, step, 3 * workers + 10, args.steps), 2)
                except ImportError as error:
                    found["failed"] = str(error)
                del batches
                forms.setdefault(workers, {})[form] = found
                print(workers, form, found, flush=True)
                rows = [{"workers": number, "forms": forms[number]} for number in sorted(forms)]
                save("decode", {**facts, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
