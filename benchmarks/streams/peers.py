"""Compare prefetching alone with other libraries' prefetchers: without transforms, from a source that hardly limits."""

from __future__ import annotations

import itertools
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from examples.augmentations import FakeImages, augmentations
from pipediag import offload
from pipediag.streams.pipeline import StagePipeline

from .loops import Options, Repeated, Training, fetching, pinned, trained
from .prefetching import Batch, copied, timm_prefetcher, torchtnt_prefetcher
from .tables import Row, ratios
from .windows import Form, measure, synchronize

KEY = ("batch", "dtype", "feed")
NEXT_KEY = ("batch",)
FEEDS = ("loader", "cached")
_DTYPES = (torch.uint8, torch.float32)
_BATCHES = (128,)
_NEXT_BATCH = 32
_WORKERS = 8
_CLASSES = 10
#: Number of distinct batches of a source.
_KINDS = 4
#: Timed calls of ``next``, untimed calls before them, and the seconds before each call in which the queues fill.
_CALLS, _UNTIMED, _PAUSE = 60, 20, 0.02

#: Turns a source into batches on the device.
Ahead = Callable[[Iterable[Any]], Iterator[Any]]


class _Batches(Dataset[Any]):  # type: ignore[misc]
    """Batches in shared memory: a worker sends a handle, so that little more than pinning remains."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = [tuple(tensor.share_memory_() for tensor in batch) for batch in batches]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self._batches[index % len(self._batches)]


def rows(options: Options) -> Iterator[Row]:
    """Yield steps per second with each prefetcher, for small and large elements, from a loader and pinned batches."""
    for batch, dtype, feed in itertools.product(options.batches or _BATCHES, _DTYPES, options.feeds or FEEDS):
        yield _row(batch, dtype, feed, options)


def next_rows(options: Options) -> Iterator[Row]:
    """Yield the milliseconds of the main thread for a batch of two tensors that is ready."""
    batch, workers = _NEXT_BATCH, (options.workers or (_WORKERS,))[0]
    train = _training(options)
    dataset = _Batches(_made(batch, torch.uint8, options.size))
    augmented = FakeImages(options.size, augmentations(options.size))

    def moved() -> Iterator[Batch]:
        loader = offload(DataLoader(augmented, batch_size=batch, num_workers=workers), options.device)
        if not loader.plan.pieces:
            raise RuntimeError(f"nothing was moved to the device: {'; '.join(loader.plan.reasons)}")
        return ((images, labels.squeeze(1)) for images, labels in loader)

    ways: dict[str, Callable[[], Iterator[Any]]] = {
        name: lambda ahead=ahead: ahead(_loader(dataset, options))  # type: ignore[misc]
        for name, ahead in _ahead(options).items()
    }
    calls: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for name, start in {**ways, "offload": moved}.items():
        if not options.wants(name):
            continue
        try:
            calls[name] = _next_ms(start(), train, options.device)
        except Exception as error:
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
    yield {
        "batch": batch,
        "next_ms": {name: statistics.median(values) for name, values in calls.items()},
        "deciles_ms": {name: statistics.quantiles(values, n=10) for name, values in calls.items()},
        "failed": failed,
    }


def _row(batch: int, dtype: torch.dtype, feed: str, options: Options) -> Row:
    device = options.device
    train = _training(options)
    made = _made(batch, dtype, options.size)
    on_device = [tensor.to(device) for tensor in made[0]]
    dataset = _Batches(made)
    held = [pinned(one, options.on_gpu) for one in made] if feed == "cached" else []
    turn = (options.workers or (_WORKERS,))[0] if feed == "loader" else 1

    def source() -> Iterable[Any]:
        return _loader(dataset, options) if feed == "loader" else Repeated(held)

    forms = [Form("device_cached", lambda: trained(Repeated([on_device]), train))]
    if feed == "loader":
        forms.append(Form("source_alone", lambda: fetching(source()), turn))
    forms += [
        Form(name, lambda ahead=ahead: trained(ahead(source()), train), turn)  # type: ignore[misc]
        for name, ahead in _ahead(options).items()
    ]
    rates = measure([form for form in forms if options.wants(form.name)], options.windows, device)
    return {
        "batch": batch,
        "dtype": str(dtype).removeprefix("torch."),
        "feed": feed,
        "steps_per_s": rates.medians,
        "ratios": ratios(
            rates.rounds, "stage_pipeline", [form.name for form in forms if form.name != "stage_pipeline"]
        ),
        "rounds": rates.rounds,
        "failed": rates.failed,
    }


def _ahead(options: Options) -> dict[str, Ahead]:
    device = options.device
    ways: dict[str, Ahead] = {"plain": lambda loader: copied(loader, device)}
    if options.on_gpu:
        for name, prefetcher in (torchtnt_prefetcher(), timm_prefetcher()):
            ways[name] = lambda loader, prefetcher=prefetcher: prefetcher(loader, device)  # type: ignore[misc]
    ways["stage_pipeline"] = lambda loader: iter(StagePipeline(loader, [], device))
    return ways


def _loader(dataset: _Batches, options: Options) -> DataLoader[Any]:
    workers = (options.workers or (_WORKERS,))[0]
    return DataLoader(dataset, batch_size=None, num_workers=workers, pin_memory=options.on_gpu)


def _made(batch: int, dtype: torch.dtype, size: int) -> list[Batch]:
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8).to(dtype)
    return [(images.clone(), torch.randint(0, _CLASSES, (batch,))) for _ in range(_KINDS)]


def _training(options: Options) -> Callable[[Tensor, Tensor], None]:
    """Return a step of a few milliseconds that takes images of any element type."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, kernel_size=8, stride=8)]
    for _ in range(8):
        layers += [nn.ReLU(inplace=True), nn.Conv2d(64, 64, kernel_size=3, padding=1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, _CLASSES))
    train = Training(model.to(options.device).train())
    return lambda images, labels: train(images.float(), labels)


def _next_ms(batches: Iterator[Any], train: Callable[..., None], device: torch.device) -> list[float]:
    """Return the milliseconds that ``next`` takes in the loop's thread if it need not wait."""
    times = []
    for _ in range(_UNTIMED + _CALLS):
        begin = time.perf_counter()
        images, labels = next(batches)
        times.append(1000 * (time.perf_counter() - begin))
        train(images, labels)
        synchronize(device)
        time.sleep(_PAUSE)
    return times[_UNTIMED:]
