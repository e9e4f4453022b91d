"""Five kinds of data as users load them: files, datasets, transforms and collate functions."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import wavfile
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

import pipediag

from ..decode import photo, write_photos

CLASSES = 16
#: Files with content of their own; the others are copies of them.
_DISTINCT = 64

Transform = Callable[[Any], Any]


@dataclass(frozen=True)
class Kind:
    """Data of one kind and how it is loaded.

    Attributes:
        samples: their number; 2 workers load them in 3 to 5 s.
        batch: samples a batch.
        write: writes so many samples to an empty folder.
        dataset: opens the folder; as in torchvision, ``dataset(folder, transform)[index]`` is (sample, label).
        transforms: what is done with a sample that is loaded.
        collate: makes a batch of samples.
    """

    samples: int
    batch: int
    write: Callable[[Path, int], None]
    dataset: Callable[[Path, Transform], Dataset[Any]]
    transforms: Sequence[Transform]
    collate: Callable[[list[Any]], Any] = default_collate


def _copy(files: Sequence[Path], number: int) -> None:
    """Add copies of the ``files`` until there are ``number`` of them."""
    for i in range(len(files), number):
        file = files[i % len(files)]
        shutil.copyfile(file, file.with_name(f"{i:06}{file.suffix}"))


# ---- images


def _write_pngs(folder: Path, number: int) -> None:
    files = []
    for i in range(min(number, _DISTINCT)):
        path = folder / f"class{i % CLASSES:02}" / f"{i:06}.png"
        path.parent.mkdir(exist_ok=True)
        photo(np.random.default_rng(i), 400, 300).save(path)
        files.append(path)
    _copy(files, number)


def _write_jpegs(folder: Path, number: int) -> None:
    write_photos(folder, min(number, _DISTINCT))
    _copy(sorted(folder.glob("*/*.jpg")), number)


def _images(folder: Path, transform: Transform) -> Dataset[Any]:
    return ImageFolder(str(folder), transform)


# ---- volumes


class Volumes(Dataset):  # type: ignore[type-arg]
    """Compressed NPZ files, each with a volume of 64 x 64 x 64 int16 and its label."""

    def __init__(self, folder: Path, transform: Transform) -> None:
        self.paths = sorted(folder.glob("*.npz"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with np.load(self.paths[index]) as file:
            return self.transform(torch.from_numpy(file["volume"])), int(file["label"])


class RandomCrop3D:
    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, volume: Tensor) -> Tensor:
        """Return a cube of the (depth, height, width) volume as float32."""
        begins = [int(torch.randint(size - self.side + 1, ())) for size in volume.shape]
        return volume[tuple(slice(begin, begin + self.side) for begin in begins)].float() / 1000


def _write_volumes(folder: Path, number: int) -> None:
    ramp = np.linspace(-1000, 1000, 64)
    files = [folder / f"{i:06}.npz" for i in range(min(number, _DISTINCT))]
    for i, path in enumerate(files):
        volume = ramp[:, None, None] + ramp[:, None] / 2 + np.random.default_rng(i).normal(0, 20, (64, 64, 64))
        np.savez_compressed(path, volume=volume.astype(np.int16), label=i % CLASSES)
    _copy(files, number)


# ---- audio

_HERTZ, _CLIP_S = 16_000, 8


class Clips(Dataset):  # type: ignore[type-arg]
    """WAV files of 16-bit mono; their names end with the label."""

    def __init__(self, folder: Path, transform: Transform) -> None:
        self.paths = sorted(folder.glob("*.wav"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path = self.paths[index]
        _, signal = wavfile.read(path)
        return self.transform(torch.from_numpy(signal).float() / 32768), int(path.stem) % CLASSES


class LogSpectrogram:
    def __init__(self, window: int, hop: int) -> None:
        self.window = torch.hann_window(window)
        self.hop = hop

    def __call__(self, signal: Tensor) -> Tensor:
        """Return the log power (frequencies, frames) of a signal (values,)."""
        spectrum = torch.stft(signal, len(self.window), self.hop, window=self.window, return_complex=True)
        return torch.log(spectrum.abs().square() + 1e-6)


class TimeMask:
    def __init__(self, frames: int) -> None:
        self.frames = frames

    def __call__(self, spectrogram: Tensor) -> Tensor:
        """Return a copy with up to ``frames`` neighbouring columns set to 0."""
        width = int(torch.randint(self.frames + 1, ()))
        begin = int(torch.randint(spectrogram.shape[1] - width + 1, ()))
        masked = spectrogram.clone()
        masked[:, begin : begin + width] = 0
        return masked


def _write_clips(folder: Path, number: int) -> None:
    seconds = np.arange(_HERTZ * _CLIP_S) / _HERTZ
    files = [folder / f"{i:06}.wav" for i in range(min(number, _DISTINCT))]
    for i, path in enumerate(files):
        tone = np.sin(2 * np.pi * 110 * (1 + i) * seconds) + np.random.default_rng(i).normal(0, 0.2, len(seconds))
        wavfile.write(path, _HERTZ, (8000 * tone).clip(-32768, 32767).astype(np.int16))
    _copy(files, number)


# ---- tables

_COLUMNS = 1000


class Rows(Dataset):  # type: ignore[type-arg]
    """Rows of a CSV file; the label is in the last column."""

    def __init__(self, folder: Path, transform: Transform) -> None:
        self.path = folder / "rows.csv"
        with self.path.open("rb") as file:
            self.begins = np.cumsum([0, *map(len, file)])[:-1]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        values, label = parsed(self.path, int(self.begins[index]))
        return self.transform(values), label


@pipediag.pure
def parsed(path: Path, begin: int) -> tuple[Tensor, int]:
    """Return the values and the label of the row that begins there."""
    with path.open("rb") as file:
        file.seek(begin)
        *values, label = next(csv.reader([file.readline().decode()]))
    return torch.tensor([float(value) for value in values]), int(label)


class Standardise:
    def __init__(self, mean: float, deviation: float) -> None:
        self.mean, self.deviation = mean, deviation

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.deviation


class Noise:
    def __init__(self, deviation: float) -> None:
        self.deviation = deviation

    def __call__(self, values: Tensor) -> Tensor:
        return values + self.deviation * torch.randn(values.shape)


def _write_rows(folder: Path, number: int) -> None:
    table = np.random.default_rng(0).normal(100, 15, (_DISTINCT, _COLUMNS))
    rows = [",".join(f"{value:.4f}" for value in row) for row in table]
    with (folder / "rows.csv").open("w") as file:
        file.writelines(f"{rows[i % _DISTINCT]},{i % CLASSES}\n" for i in range(number))


_CROPPED = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor()]

KINDS = {
    "png": Kind(1200, 32, _write_pngs, _images, _CROPPED),
    "jpeg": Kind(1600, 32, _write_jpegs, _images, _CROPPED),
    "npz": Kind(1600, 32, _write_volumes, Volumes, [RandomCrop3D(48)]),
    "wav": Kind(1600, 32, _write_clips, Clips, [LogSpectrogram(400, 160), TimeMask(40)]),
    "csv": Kind(14_000, 256, _write_rows, Rows, [Standardise(100, 15), Noise(0.1)]),
}
