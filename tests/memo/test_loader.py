"""Cached loaders give the plain loader's batches, whatever the samples depend on."""

from __future__ import annotations

import argparse
import io
import multiprocessing
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import pipediag
from pipediag.errors import UsageError
from pipediag.memo import loader as loaders
from pipediag.memo.loader import CachedLoader
from pipediag.patches import LIVE

ITEMS, BATCH = 12, 3
_epoch = 0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """PNGs with a GIF and a JPEG among them."""
    folder = tmp_path_factory.mktemp("pictures")
    names = [folder / f"{i:02}.{'gif' if i == 4 else 'jpg' if i % 3 == 1 else 'png'}" for i in range(ITEMS)]
    for i, name in enumerate(names):
        pixels = np.random.default_rng(i).integers(0, 256, (9, 11, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(name)
    return names


class Pictures(Dataset[Tensor]):
    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def picture(self, index: int) -> np.ndarray[Any, Any]:
        with Image.open(self.files[index]) as picture:
            return np.array(picture.convert("RGB"), np.float32)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.picture(index) * self.factor(index))

    def factor(self, index: int) -> float:
        return 1.0

    def set_epoch(self, epoch: int) -> None:
        pass


class InConfig(Pictures):
    """An epoch in an object that a Namespace holds."""

    def __init__(self, files: list[Path]) -> None:
        super().__init__(files)
        self.config = {"args": argparse.Namespace(epoch=0)}

    def factor(self, index: int) -> float:
        return float(np.random.default_rng([self.config["args"].epoch, index]).uniform(0.5, 1.5))

    def set_epoch(self, epoch: int) -> None:
        self.config["args"].epoch = epoch


class Shared(Pictures):
    """A value that the training process and its workers share."""

    def __init__(self, files: list[Path]) -> None:
        super().__init__(files)
        self.epoch = multiprocessing.get_context("fork").Value("i", 0)

    def factor(self, index: int) -> float:
        return 1.0 + self.epoch.value

    def set_epoch(self, epoch: int) -> None:
        self.epoch.value = epoch


class OnTheClass(Pictures):
    epoch = 0

    def factor(self, index: int) -> float:
        return 1.0 + type(self).epoch

    def set_epoch(self, epoch: int) -> None:
        type(self).epoch = epoch


class InAGlobal(Pictures):
    def factor(self, index: int) -> float:
        return 1.0 + _epoch

    def set_epoch(self, epoch: int) -> None:
        global _epoch
        _epoch = epoch


class OfTheWorker(Pictures):
    def factor(self, index: int) -> float:
        info = get_worker_info()
        return 1.0 if info is None else 2.0 + info.id


class Late(Pictures):
    """Noise for late samples only, of every generator."""

    def factor(self, index: int) -> float:
        if index < 9:
            return 1.0
        return random.random() + float(np.random.random()) + float(torch.rand(()))


class Counting(Pictures):
    """A replay buffer: each sample depends on those before it in its process."""

    def __init__(self, files: list[Path]) -> None:
        super().__init__(files)
        self.seen: list[float] = []

    def factor(self, index: int) -> float:
        self.seen.append(float(self.picture(index).mean()))
        return self.seen[len(self.seen) // 2]


class Together(Pictures):
    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [self[index] + len(indices) for index in indices]


class Recompressed(Pictures):
    """A random JPEG quality: bytes that do not recur."""

    def picture(self, index: int) -> np.ndarray[Any, Any]:
        file = io.BytesIO()
        Image.fromarray(super().picture(index).astype(np.uint8)).save(file, "jpeg", quality=random.randint(20, 90))
        return np.array(Image.open(file), np.float32)


class InPlace(Pictures):
    """Writes into the picture that it has opened."""

    def picture(self, index: int) -> np.ndarray[Any, Any]:
        picture = Image.open(self.files[index])
        pixels: Any = picture.load()
        first = pixels[0, 0]
        if picture.mode == "RGB":
            pixels[0, 0] = (first[0] // 2, 7, 7)
        return np.array(picture.convert("RGB"), np.float32)


class Stream(IterableDataset[Tensor]):
    def __init__(self, files: list[Path]) -> None:
        self.pictures, self.epoch = Pictures(files), 0

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, ITEMS, step):
            yield self.pictures[index] + self.epoch + torch.rand(())

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


KINDS = [
    Pictures,
    InConfig,
    Shared,
    OnTheClass,
    InAGlobal,
    OfTheWorker,
    Late,
    Counting,
    Together,
    Recompressed,
    InPlace,
]


def train(dataset: Any, wrap: Callable[[Any], Any], **settings: Any) -> list[Any]:
    """Return three epochs' batches, and the states of all generators after each."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    shuffle = not isinstance(dataset, IterableDataset)
    loader = wrap(DataLoader(dataset, BATCH, shuffle, **settings))
    epochs = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        batches = [batch.numpy().tobytes() for batch in loader]
        numpys = np.random.get_state()[1].tobytes()  # type: ignore[union-attr]
        epochs.append((batches, random.getstate(), numpys, torch.get_rng_state().numpy().tobytes()))
    return epochs


class Everything(Pictures):
    """One of every kind: few workers have to start."""

    def __init__(self, files: list[Path]) -> None:
        super().__init__(files)
        self.parts = [kind(files) for kind in KINDS]

    def __getitem__(self, index: int) -> Tensor:
        return torch.stack([part[index] for part in self.parts])

    def set_epoch(self, epoch: int) -> None:
        for part in self.parts:
            part.set_epoch(epoch)


@pytest.mark.parametrize(
    ("kind", "workers"),
    [*((kind, 0) for kind in KINDS), (Stream, 0), (Everything, 2), (Together, 2), (Stream, 2)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_batches_are_the_plain_ones(files: list[Path], kind: Any, workers: int) -> None:
    wrapped: list[CachedLoader] = []

    def wrap(loader: DataLoader[Any]) -> DataLoader[Any]:
        wrapped.append(pipediag.cache(loader))
        return wrapped[0]

    plain = train(kind(files), lambda loader: loader, num_workers=workers)
    assert train(kind(files), wrap, num_workers=workers) == plain
    assert wrapped[0].memo.hits >= 2 * 11, "all but the GIF, from the second epoch on"
    assert LIVE == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_persistent_workers(files: list[Path], method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if method == "spawn":
        monkeypatch.setattr(loaders, "InitWorker", Lenient)
    settings: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
    wrapped: list[CachedLoader] = []

    def wrap(loader: DataLoader[Any]) -> DataLoader[Any]:
        wrapped.append(pipediag.cache(loader))
        return wrapped[0]

    plain = train(Late(files), lambda loader: loader, **settings)
    assert train(Late(files), wrap, multiprocessing_context=method, **settings) == plain
    assert wrapped[0].memo.hits >= 2 * 11


class Lenient(loaders.InitWorker):
    """For spawned workers, which the fixtures have not reached."""

    def __call__(self, worker_id: int) -> None:
        from pipediag.memo import keys, memo

        keys.SETTLED, memo._READ_S, memo._BYTE_S = 0.0, 0.0, 0.0
        super().__call__(worker_id)


class OwnIterator(DataLoader[Any]):
    def __iter__(self) -> Any:
        return (batch + 1 for batch in super().__iter__())


def test_a_loaders_own_class_stays(files: list[Path]) -> None:
    plain = OwnIterator(Pictures(files), BATCH)
    cached = pipediag.cache(plain)
    assert isinstance(cached, OwnIterator) and pipediag.cache(cached) is cached
    assert all(map(torch.equal, cached, plain))
    assert cached.dataset is plain.dataset and len(cached) == len(plain)


def test_the_users_init_function_runs(files: list[Path]) -> None:
    plain = DataLoader(Pictures(files), BATCH, num_workers=1, worker_init_fn=torch.manual_seed)
    assert all(map(torch.equal, pipediag.cache(plain), plain))


def test_loaders_of_a_process_share_what_they_keep(files: list[Path]) -> None:
    one, other = (pipediag.cache(DataLoader(Pictures(files), BATCH)) for _ in range(2))
    apart = pipediag.cache(DataLoader(Pictures(files), BATCH), nbytes=1 << 20)
    assert one.memo is other.memo is not apart.memo
    list(one)
    list(other)
    assert one.memo.hits >= 11


def test_a_folder_serves_the_next_run(files: list[Path], tmp_path: Path) -> None:
    first = pipediag.cache(DataLoader(Pictures(files), BATCH, num_workers=2), folder=tmp_path)
    batches = list(first)
    assert "Pillow: 11 calls made, 0 answered from the cache" in first.plan
    del first
    second = pipediag.cache(DataLoader(Pictures(files), BATCH, num_workers=2), folder=tmp_path)
    assert all(map(torch.equal, second, batches)) and second.memo.hits == 11


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_the_plan_says_that_nothing_is_known() -> None:
    cached = pipediag.cache(DataLoader(Numbers()))
    list(cached)
    assert "@pipediag.pure" in cached.plan


def test_errors() -> None:
    with pytest.raises(UsageError, match="takes a torch DataLoader"):
        pipediag.cache([1])  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        pipediag.cache(DataLoader(Numbers()), nbytes=-1)
