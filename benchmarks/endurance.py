"""Read a large folder with bad files among its JPEGs for many epochs, with the decoding on the GPU.

    python -m benchmarks.endurance                           # 100,000 files, 10 epochs, 15 workers
    python -m benchmarks.endurance --samples 4000 --epochs 3

Fifty files are corrupt, fifty are PNGs, fifty CMYK and fifty progressive. The dataset takes the next file in place of
one that cannot be read, as many scripts do. The plain loader reads the first epochs too. In the first, labels and files
have to be the same, in the same order, and each image's mean is compared. Memory is read at the end of every epoch.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from pipediag.remedy import offload

from .common import RESULTS, own_mib, save, shared_memory
from .decode import photo

_CLASSES = 10
_DISTINCT = 200
#: The kinds of files that are no plain JPEG, and how many there are of each.
KINDS = ("truncated", "damaged table", "damaged scan", "empty", "no picture", "png", "cmyk", "progressive")
NUMBERS = (10, 10, 10, 10, 10, 50, 50, 50)
_MIB = 1 << 20


def _encoded(seed: int, mode: str = "RGB", format: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    rng = np.random.default_rng(seed)
    width, height = int(rng.integers(430, 570)), int(rng.integers(330, 420))
    photo(rng, width, height).convert(mode).save(file, format, **options)
    return file.getvalue()


def _content(kind: str, seed: int) -> bytes:
    if kind == "png":
        return _encoded(seed, format="PNG")
    if kind == "cmyk":
        return _encoded(seed, mode="CMYK")
    if kind == "progressive":
        return _encoded(seed, progressive=True)
    whole = bytearray(_encoded(seed))
    if kind == "truncated":
        del whole[-3000:]
    elif kind == "damaged table":
        whole[whole.index(b"\xff\xc4") + 8] = 255
    elif kind == "damaged scan":
        whole[-4000:-3900] = bytes(100)
    return {"empty": b"", "no picture": b"no picture"}.get(kind, bytes(whole))


def write(folder: Path, samples: int) -> list[str]:
    """Write the files; return the kind of each in the dataset's order, "" for a plain JPEG."""
    special = [kind for kind, number in zip(KINDS, NUMBERS, strict=True) for _ in range(number)]
    places = np.random.default_rng(0).choice(samples, len(special), replace=False)
    kinds = dict(zip(places.tolist(), special, strict=True))
    plain: list[Path] = []
    per_class = -(-samples // _CLASSES)
    for number in range(samples):
        path = folder / f"class{number // per_class}" / f"{number:06}.jpg"
        path.parent.mkdir(exist_ok=True)
        if number in kinds:
            path.write_bytes(_content(kinds[number], number))
        elif len(plain) < _DISTINCT:
            path.write_bytes(_encoded(number))
            plain.append(path)
        else:
            os.link(plain[number % _DISTINCT], path)
    return [kinds.get(number, "") for number in range(samples)]


class Photos(ImageFolder):  # type: ignore[misc]
    """As :class:`~torchvision.datasets.ImageFolder`; a sample is (image, label, index read, own memory in MiB).

    The last is text: numbers would have to be equal for a remedy to be certified.
    """

    def __getitem__(self, index: int) -> tuple[Tensor, int, int, str]:
        while True:
            try:
                return *super().__getitem__(index), index, str(own_mib())
            except (OSError, SyntaxError):
                index = (index + 1) % len(self)


def loader_of(folder: Path, args: argparse.Namespace) -> DataLoader[Any]:
    normalize = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    chain = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), normalize])
    return DataLoader(Photos(folder, chain), args.batch, True, num_workers=args.workers, pin_memory=True)


def epoch(source: Iterable[Any], number: int, device: torch.device) -> dict[str, Any]:
    """Read everything once; return labels, indices and each image's mean, with the time and the memory."""
    torch.manual_seed(number)
    read: dict[str, list[Tensor]] = {"labels": [], "indices": [], "means": []}
    worker_mib = 0.0
    began = time.perf_counter()
    for images, labels, indices, own in source:
        read["means"].append(images.to(device, non_blocking=True).mean((1, 2, 3)))
        read["labels"].append(labels)
        read["indices"].append(indices)
        worker_mib = max(worker_mib, *map(float, own))
    found: dict[str, Any] = {name: torch.cat(parts).cpu() for name, parts in read.items()}
    found["seconds"] = round(time.perf_counter() - began, 2)
    del images, labels, indices
    gc.collect()
    free, total = torch.cuda.mem_get_info(device)
    found["memory_mib"] = {
        "process": round(own_mib(), 1),
        "worker": round(worker_mib, 1),
        "gpu": round((total - free) / _MIB, 1),
        "gpu of torch": round(torch.cuda.memory_reserved(device) / _MIB, 1),
    }
    found["open_files"] = len(os.listdir("/proc/self/fd"))
    found["shared_memory"] = shared_memory()
    return found


def compare(plain: dict[str, Any], ours: dict[str, Any], kinds: list[str]) -> dict[str, Any]:
    """Return what is equal, and by kind the largest difference of an image's mean, in levels of a byte."""
    differences = (plain["means"] - ours["means"]).abs() * 255 * 0.225
    by_kind: dict[str, list[float]] = {}
    for index, difference in zip(plain["indices"].tolist(), differences.tolist(), strict=True):
        by_kind.setdefault(kinds[index] or "jpeg", []).append(difference)
    return {
        "labels equal": torch.equal(plain["labels"], ours["labels"]),
        "files equal": torch.equal(plain["indices"], ours["indices"]),
        "largest difference of a mean": {kind: round(max(all_), 4) for kind, all_ in sorted(by_kind.items())},
        "images": {kind: len(all_) for kind, all_ in sorted(by_kind.items())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--plain-epochs", type=int, default=2, help="more of them show how their memory grows")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    device = torch.device("cuda")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds = write(folder, args.samples)
        ours = offload(loader_of(folder, args), device, approximate=True)
        print(ours.plan, flush=True)
        if not ours.plan.decodes:
            raise SystemExit("nothing is decoded on the GPU here")
        result: dict[str, Any] = {key: getattr(args, key) for key in ("samples", "epochs", "workers", "batch")}
        result["plan"] = str(ours.plan).splitlines()
        plain_loader = loader_of(folder, args)
        plain = epoch(plain_loader, 0, device)
        result["plain_seconds"] = plain["seconds"]
        result["plain_memory_mib"] = [plain["memory_mib"]]
        for number in range(1, args.plain_epochs):
            result["plain_memory_mib"].append(epoch(plain_loader, number, device)["memory_mib"])
        result["rows"] = []
        for number in range(args.epochs):
            found = epoch(ours, number, device)
            if number == 0:
                result["first_epoch"] = compare(plain, found, kinds)
                print(result["first_epoch"], flush=True)
            row = {key: value for key, value in found.items() if not isinstance(value, Tensor)}
            result["rows"].append({**row, "unrecorded": ours.unrecorded, "why": ours.why})
            print(result["rows"][-1], flush=True)
            path = save("endurance", result, args.out)
    print(f"written {path}")


if __name__ == "__main__":
    main()
