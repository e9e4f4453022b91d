"""Measure the costs and gains of moving a chain of transforms: the replay on the device, the recording in a worker.

    python -m benchmarks.offload --what replay     # on a GPU: milliseconds per batch, and of others' batched code
    python -m benchmarks.offload --what record     # on the CPU: microseconds per sample, and of executing the chain
    python -m benchmarks.offload --what supply     # batches per second from the workers
    python -m benchmarks.offload --what train      # on a GPU: steps per second of the article's loop

The replay is compared with the batched code of the article that the chain comes from (a loop over the rotations, one
sigma and one crop size for all), with kornia if it is installed, and with the memory floor: the bytes that
must be read and written once, at the copy bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision.transforms.v2 as T
import torchvision.transforms.v2.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import ops

from pipediag.remedy.loader import OffloadedLoader, offload
from pipediag.replay.pack.packed_batch import Packed
from pipediag.replay.pack.packing import pack_ops
from pipediag.replay.plan import Plan
from pipediag.replay.record.hooks import recording
from pipediag.replay.record.recorder import Recorder
from pipediag.replay.record.scouting import find
from pipediag.replay.record.substitutes import stand_in
from pipediag.replay.run.replay import replay_on
from pipediag.replay.worker import PackingSide

from .common import RESULTS, save

SIZE = 256
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def article() -> T.Compose:
    """Return the augmentations from the second part of the article on CUDA streams."""
    return T.Compose(
        [
            T.ToDtype(torch.float32),
            T.RandomCrop(SIZE // 2),
            T.Resize(SIZE),
            T.RandomRotation(degrees=45.0),
            T.GaussianBlur(kernel_size=7),
            T.Normalize(mean=[0, 0, 0], std=[1, 1, 1]),
        ]
    )


def simclr() -> T.Compose:
    return T.Compose(
        [
            T.RandomResizedCrop(224),
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            T.RandomGrayscale(0.2),
            T.GaussianBlur(23, (0.1, 2.0)),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(MEAN, STD),
        ]
    )


CHAINS = {"article": article, "simclr": simclr}


class ArticleBatch:
    """The article's own batched code: one crop per sample, one rotation after the other, one blur for all."""

    def __init__(self) -> None:
        self._resize = T.Resize(SIZE)
        self._blur = T.GaussianBlur(kernel_size=7)
        self._normalize = T.Normalize(mean=[0, 0, 0], std=[1, 1, 1])

    def __call__(self, images: Tensor) -> Tensor:
        images = images.to(torch.float32)
        count, _, height, width = images.shape
        side = SIZE // 2
        top = torch.randint(0, height - side + 1, (count,), device=images.device, dtype=torch.float32)
        left = torch.randint(0, width - side + 1, (count,), device=images.device, dtype=torch.float32)
        which = torch.arange(count, device=images.device, dtype=torch.float32)
        boxes = torch.stack([which, left, top, left + side, top + side], 1)
        images = self._resize(ops.roi_align(images, boxes, output_size=side))
        images = torch.stack([F.rotate(image, angle=random.uniform(-45.0, 45.0)) for image in images.unbind()])
        return self._normalize(self._blur(images))


def kornia_batch() -> Callable[[Tensor], Tensor] | None:
    try:
        import kornia.augmentation as K
    except ImportError:
        return None
    chain = torch.nn.Sequential(
        K.RandomCrop((SIZE // 2, SIZE // 2)),
        K.Resize((SIZE, SIZE)),
        K.RandomRotation(45.0, p=1.0, resample="nearest"),
        K.RandomGaussianBlur((7, 7), (0.1, 2.0), p=1.0),
    )
    return lambda images: chain(images.float())


class Replays:
    """Recorded batches, replayed one after the other as if they came from the workers."""

    def __init__(self, chain: T.Compose, batch: int, fuse: bool, pinned: bool, count: int = 4) -> None:
        recorder = Recorder(chain, 0)
        like = stand_in(torch.empty((), dtype=torch.uint8).expand(3, SIZE, SIZE))
        self._packed: list[Packed] = []
        for _ in range(count):
            with recording():
                tracks = [recorder(like).tape.track() for _ in range(batch)]
            packed = pack_ops(tracks, (3, SIZE, SIZE), torch.uint8, fuse)
            self._packed.append(packed.pin_memory() if pinned else packed)
        self._next = 0

    def __call__(self, images: Tensor) -> Tensor:
        self._next = (self._next + 1) % len(self._packed)
        return replay_on(self._packed[self._next], images)


def milliseconds(work: Callable[[], Any], repeats: int = 7, rounds: int = 20) -> float:
    """Return the median over ``repeats`` of the time per call in a series of ``rounds``, launches included."""
    for _ in range(5):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(rounds):
            work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / rounds)
    return 1000 * statistics.median(times)


def copy_bandwidth() -> float:
    """Return the bytes per second that a copy on the device reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (milliseconds(lambda: target.copy_(source)) / 1000)


def replay(batches: list[int]) -> dict[str, Any]:
    bandwidth = copy_bandwidth()
    kornia = kornia_batch()
    rows = []
    for batch in batches:
        images = torch.randint(0, 256, (batch, 3, SIZE, SIZE), dtype=torch.uint8, device="cuda")
        ways: dict[str, Callable[[Tensor], Tensor] | None] = {
            "article": ArticleBatch(),
            "kornia": kornia,
            "eager": Replays(article(), batch, fuse=False, pinned=True),
            "fused": Replays(article(), batch, fuse=True, pinned=True),
        }
        times = {
            name: milliseconds(lambda way=way, images=images: way(images))
            for name, way in ways.items()
            if way is not None
        }
        # The chain reads a quarter of each image and writes a whole one in float32.
        floor = batch * 3 * SIZE * SIZE * (1 / 4 + 4) / bandwidth * 1000
        row: dict[str, Any] = {"batch": batch, "ms": times, "floor_ms": floor}
        row["fused_over_floor"] = times["fused"] / floor
        row["times_faster_than"] = {k: v / times["fused"] for k, v in times.items() if k != "fused"}
        with torch.random.fork_rng(devices=()):
            simclr_ = Replays(simclr(), batch, fuse=True, pinned=True)
            row["simclr_fused_ms"] = milliseconds(lambda way=simclr_, images=images: way(images))
        rows.append(row)
        print(row, flush=True)
    return {"copy_bandwidth_gb_per_s": bandwidth / 1e9, "rows": rows}


class Images(Dataset):  # type: ignore[type-arg]
    """One random uint8 image, returned for every index: only the transform is timed."""

    def __init__(self, transform: Callable[[Tensor], Tensor] | None, drawn: bool = False) -> None:
        self.transform = transform
        self._drawn = drawn
        self._image = torch.randint(0, 256, (3, SIZE, SIZE), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.randint(0, 256, (3, SIZE, SIZE), dtype=torch.uint8) if self._drawn else self._image
        return (self.transform(image) if self.transform else image), index % 10


def record(batch: int = 32, repeats: int = 60) -> dict[str, Any]:
    """Return microseconds per sample, in one process with one thread, as in a worker."""
    torch.set_num_threads(1)
    chains = {}
    for name, chain in CHAINS.items():
        dataset, bare = Images(chain()), Images(None)
        plan = find(dataset, default_collate, range(4), Plan(fuse=True))
        station = PackingSide(dataset, default_collate, plan)
        shares = {}
        for key, work in {
            "executed": lambda d=dataset: default_collate([d[i] for i in range(batch)]),
            "recorded": lambda s=station: s.samples(range(batch)),
            "payload_alone": lambda d=bare: default_collate([d[i] for i in range(batch)]),
        }.items():
            times = []
            for _ in range(repeats if key != "executed" else 3):
                begin = time.perf_counter()
                work()
                times.append(time.perf_counter() - begin)
            shares[key] = 1e6 * statistics.median(times) / batch
        shares["added"] = shares["recorded"] - shares["payload_alone"]
        shares["times_cheaper"] = shares["executed"] / shares["recorded"]
        chains[name] = shares
        print(name, shares, flush=True)
    return {"batch": batch, "microseconds_a_sample": chains}


def supply(batch: int = 32, workers: int = 8, steps: int = 200) -> dict[str, Any]:
    """Measure batches per second from the workers: raw, recorded and executed images, in three alternating rounds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rates: dict[str, list[float]] = {"raw": [], "recorded": [], "executed": []}
    dataset = Images(article(), drawn=True)
    plan = find(dataset, default_collate, range(4), Plan(fuse=True))
    assert plan.pieces, plan.reasons
    for _ in range(3):
        for name in rates:
            data = Images(None, drawn=True) if name == "raw" else dataset
            loader = DataLoader(data, batch_size=batch, num_workers=workers, pin_memory=device.type == "cuda")
            source: Any = OffloadedLoader(loader, plan, device).feed.begin() if name == "recorded" else loader
            iterator = iter(source)
            for _ in range(2 * workers):
                next(iterator)
            count = steps if name != "executed" else steps // 5
            begin = time.perf_counter()
            for _ in range(count):
                next(iterator)
            rates[name].append(count / (time.perf_counter() - begin))
            del iterator
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(medians, flush=True)
    return {
        "batch": batch,
        "workers": workers,
        "batches_a_second": rates,
        "of_raw": medians["recorded"] / medians["raw"],
    }


class _Step:
    """The article's training step."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        self._criterion = torch.nn.CrossEntropyLoss()

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        images = images.to(self._device, non_blocking=True)
        labels = labels.to(self._device, non_blocking=True).squeeze(1)
        self._optimizer.zero_grad()
        self._criterion(self._model(images), labels).backward()
        self._optimizer.step()


def train(batches: tuple[int, ...] = (32, 128), workers: int = 8) -> dict[str, Any]:
    """Measure steps per second of the article's loop: device-cached batches, the plain loader, and offload()."""
    from examples.augmentations import FakeImages, strided_cnn

    device = torch.device("cuda")
    rows = []
    for batch in batches:
        model = strided_cnn(SIZE).to(device).train()
        step = _Step(model, device)
        plain = DataLoader(FakeImages(SIZE, article()), batch_size=batch, num_workers=workers, pin_memory=True)
        raw = DataLoader(FakeImages(SIZE), batch_size=batch, num_workers=workers, pin_memory=True)
        moved = offload(plain, device)
        assert moved.plan.pieces and moved.certificate is not None and moved.certificate.passed, moved.certificate
        cached = [value.to(device) for value in next(iter(plain))]
        ways: dict[str, tuple[Any, int]] = {
            "device_cached": (itertools.repeat(cached), 100),
            "plain": (plain, 4000 // (batch * 4)),
            "offload": (moved, 100),
            "raw_loader_alone": (raw, 100),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(3):
            for name, (source, count) in ways.items():
                iterator = iter(source)
                alone = name == "raw_loader_alone"
                for _ in range(2 * workers):
                    next(iterator) if alone else step(*next(iterator))
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(count):
                    next(iterator) if alone else step(*next(iterator))
                torch.cuda.synchronize()
                rates[name].append(count / (time.perf_counter() - begin))
                del iterator
        medians = {name: statistics.median(values) for name, values in rates.items()}
        rows.append({"batch": batch, "steps_per_s": medians, "rounds": rates})
        rows[-1]["gain"] = medians["offload"] / medians["plain"]
        print(rows[-1], flush=True)
    return {"workers": workers, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the costs and gains of moving a chain of transforms.")
    parser.add_argument(
        "--what", nargs="+", choices=("replay", "record", "supply", "train"), default=["replay", "record"]
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 128, 256])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    result: dict[str, Any] = {}
    if "record" in args.what:
        result["record"] = record()
    if "supply" in args.what:
        result["supply"] = supply(workers=args.workers)
    if "train" in args.what:
        result["train"] = train(workers=args.workers)
    if "replay" in args.what:
        result["replay"] = replay(args.batches)
    print(save("offload", result, args.output))


if __name__ == "__main__":
    main()
