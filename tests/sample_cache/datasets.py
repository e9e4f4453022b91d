"""Datasets as users write them, whose samples the cache's tests keep."""

from __future__ import annotations

import csv
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.io import wavfile
from torch.utils.data import Dataset
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

SAMPLES = 24


class Photos(Dataset[Any]):
    """PNG files in a folder; ``transform`` gets Pillow images."""

    def __init__(self, root: Path, transform: Callable[..., Any]) -> None:
        self.paths = sorted(root.glob("*.png"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index % 3


class Views(Photos):
    """Two views of each image, as for contrastive learning."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return self.transform(image), self.transform(image), index


class Pairs(Photos):
    """Image and mask in a dict, transformed together."""

    def __getitem__(self, index: int) -> Any:
        image = tv_tensors.Image(np.asarray(Image.open(self.paths[index]).convert("RGB")).transpose(2, 0, 1).copy())
        sample = {"image": image, "mask": tv_tensors.Mask(image[:1] > 128)}
        return {**self.transform(sample), "name": self.paths[index].name}


class Archive(Dataset[Any]):
    """Arrays of one NPZ file, opened at the first sample; noise is added by the user's own transform."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)
        self.arrays: Any = None
        self.augment = noisy

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if self.arrays is None:
            self.arrays = np.load(self.file)
        array = self.arrays["signals"][index].astype(np.float32)
        return self.augment((array - array.mean()) / array.std()), np.int64(index)


def noisy(array: np.ndarray) -> np.ndarray:
    return array + np.random.normal(0, 0.1, array.shape).astype(np.float32)


class Sounds(Dataset[Any]):
    """WAV files; the user's own transform cuts a random second."""

    def __init__(self, root: Path) -> None:
        self.paths = [str(path) for path in sorted(root.glob("*.wav"))]
        self.transform = v2.Compose([spectrum, Shifted()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        _, sound = wavfile.read(self.paths[index])
        return self.transform(torch.from_numpy(sound.astype(np.float32)))


def spectrum(sound: torch.Tensor) -> torch.Tensor:
    return torch.stft(sound, 64, return_complex=True, window=torch.ones(64)).abs()


class Shifted:
    def __call__(self, spectrum: torch.Tensor) -> torch.Tensor:
        return torch.roll(spectrum, int(torch.randint(0, 8, ())), dims=1)


class Blanked:
    """Writes into the image that it gets."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        image[..., random.randrange(8) :] = 0
        return image


class Texts(Dataset[Any]):
    """Lines of a file, tokenised for every sample. There is nothing random."""

    def __init__(self, file: Path) -> None:
        self.lines = file.read_text().splitlines()

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Any:
        ids = [sum(map(ord, word)) % 997 for word in self.lines[index].split()]
        return {"input_ids": torch.tensor(ids[:4]), "length": len(ids), "text": self.lines[index]}


class Rows(Dataset[Any]):
    """Rows of a CSV file, parsed when the dataset is made."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with open(file) as lines:
            self.rows = [[float(cell) for cell in row] for row in csv.reader(lines)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = torch.tensor(self.rows[index])
        return row[:-1], row[-1]


class Together(Rows):
    """Makes the samples of a batch together."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        rows = torch.tensor([self.rows[index] for index in indices])
        return [(row[:-1], row[-1]) for row in rows]


class Clocked(Texts):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), time.perf_counter()


class Counting(Texts):
    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return super().__getitem__(index)


class Mixing(Texts):
    """Mixes each sample with another one, drawn at random."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), super().__getitem__(random.randrange(len(self)))


class OwnGenerator(Texts):
    """Draws from a generator of its own before its transform."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return float(self.rng.random()), super().__getitem__(index)["length"]


class Unstorable(Texts):
    def __getitem__(self, index: int) -> Any:
        return lambda: index


class Epochs(Rows):
    """Depends on an attribute that the script sets for each epoch."""

    epoch = 0

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.epoch = 0

    def __getitem__(self, index: int) -> Any:
        row, label = super().__getitem__(index)
        return row * (1 + self.epoch), label


class Faulty(Rows):
    def __getitem__(self, index: int) -> Any:
        if index == 21:
            raise ValueError("row 21 is broken")
        return super().__getitem__(index)


class Within(Dataset[Any]):
    """A home-made wrapper of another dataset."""

    def __init__(self, inner: Dataset[Any]) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return SAMPLES // 2

    def __getitem__(self, index: int) -> Any:
        image, label = self.inner[2 * index]
        return {"image": image, "label": label}


def photos(root: Path) -> Path:
    """PNG files of different sizes, each with a shape and noise."""
    draw = np.random.default_rng(0)
    for index in range(SAMPLES):
        pixels = draw.integers(0, 256, (40 + index, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{index:02}.png")
    return root


def classes(root: Path) -> Path:
    """The same, as ``ImageFolder`` takes them."""
    for name in ("cat", "dog"):
        (root / name).mkdir()
        photos(root / name)
    return root


def sounds(root: Path) -> Path:
    for index in range(SAMPLES):
        wave = np.sin(np.arange(1024) * (index + 1) / 20)
        wavfile.write(root / f"{index:02}.wav", 1024, (wave * 3e4).astype(np.int16))
    return root


def archive(root: Path) -> Path:
    np.savez(root / "signals.npz", signals=np.random.default_rng(0).integers(0, 99, (SAMPLES, 300)))
    return root / "signals.npz"


def lines(root: Path) -> Path:
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs"]
    text = "\n".join(" ".join(words[k % 7 : 5 + k % 5]) + f" a b c d {k}" for k in range(SAMPLES))
    (root / "lines.txt").write_text(text)
    return root / "lines.txt"


def table(root: Path) -> Path:
    rows = np.random.default_rng(0).random((SAMPLES, 5)).tolist()
    (root / "table.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    return root / "table.csv"


#: What users' scripts train on: a name, what makes it below a folder, and what is kept of it.
def usual() -> dict[str, tuple[Callable[[Path], Any], str]]:
    crops = [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3)]
    newer = [v2.ToImage(), v2.Resize((24, 24)), v2.RandomCrop(16), v2.ToDtype(torch.float32, scale=True)]
    return {
        "image folder": (lambda root: ImageFolder(classes(root), T.Compose(crops)), "kept before RandomResizedCrop"),
        "resized": (lambda root: Photos(photos(root), T.Compose([T.Resize((32, 32)), *crops])), "kept after Resize"),
        "newer": (lambda root: Photos(photos(root), v2.Compose(newer)), "kept after Resize"),
        "two views": (lambda root: Views(photos(root), T.Compose(crops)), "kept before RandomResizedCrop"),
        "dicts": (lambda root: Pairs(photos(root), v2.Compose(newer[1:])), "kept after Resize"),
        "evaluation": (
            lambda root: Photos(photos(root), T.Compose([T.Resize((20, 20)), T.ToTensor()])),
            "kept whole",
        ),
        "written into": (
            lambda root: Photos(photos(root), T.Compose([T.Resize((20, 20)), T.ToTensor(), Blanked()])),
            "kept after ToTensor",
        ),
        "archive": (lambda root: Archive(archive(root)), "kept before noisy"),
        "sounds": (lambda root: Sounds(sounds(root)), "kept after spectrum"),
        "texts": (lambda root: Texts(lines(root)), "kept whole"),
        "rows": (lambda root: Rows(table(root)), "kept whole"),
        "together": (lambda root: Together(table(root)), "kept whole"),
        "subset": (
            lambda root: torch.utils.data.random_split(Photos(photos(root), T.Compose(crops)), [20, 4])[0],
            "kept before RandomResizedCrop",
        ),
        "concatenated": (
            lambda root: torch.utils.data.ConcatDataset(
                [Photos(photos(root), T.Compose(crops)), Photos(root, T.Compose([T.Resize((16, 16)), *crops]))]
            ),
            "kept before RandomResizedCrop",
        ),
        "home-made wrapper": (
            lambda root: Within(Photos(photos(root), T.Compose(crops))),
            "kept before RandomResizedCrop",
        ),
    }


#: Datasets of which nothing is kept, and why.
LEFT_ALONE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "clock": (lambda root: Clocked(lines(root)), "made a second time, its samples are different"),
    "counter": (lambda root: Counting(lines(root)), "making a sample changes its 'calls'"),
    "mixing": (lambda root: Mixing(lines(root)), "draw from Python's generator outside its transforms"),
    "own generator": (lambda root: OwnGenerator(lines(root)), "made a second time, its samples are different"),
    "unstorable": (lambda root: Unstorable(lines(root)), "cannot be stored"),
}
