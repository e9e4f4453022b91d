"""Small datasets whose samples hold draws of all generators, and a comparison of two loaders' batches."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors

from pipediag.remedy import OffloadedLoader
from pipediag.usercode import tree

HEIGHT, WIDTH = 40, 56
#: Allowed difference of floating-point results, as a fraction of their range.
TOLERANCE = 1e-5
#: Fraction of the pixels that may be off by a level if a chain rounds to integers.
SHARE = 1e-3


def pixels(index: int, channels: int = 3, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    """A different uint8 image for every index, with smooth parts, hard edges and noise."""
    return _drawn(index, channels, height, width).clone()


@lru_cache(512)  # the same few images are asked for in most tests
def _drawn(index: int, channels: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(index)
    coarse = torch.rand(1, channels, 5, 7, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic")[0]
    image = (smooth + 0.1 * torch.randn(channels, height, width, generator=generator)).clamp(0, 1).mul(255).byte()
    image[:, height // 4 : height // 2, width // 3 : width // 2] = torch.tensor(index * 37 % 256, dtype=torch.uint8)
    return image


def image(index: int) -> tv_tensors.Image:
    return tv_tensors.Image(pixels(index))


def mask(index: int) -> tv_tensors.Mask:
    return tv_tensors.Mask(pixels(index, channels=1) // 32)


def picture(index: int) -> PIL.Image.Image:
    return PIL.Image.fromarray(pixels(index).permute(1, 2, 0).numpy())


def floats(index: int) -> Tensor:
    return pixels(index) / 255


def grey(index: int) -> Tensor:
    return pixels(index, channels=1)


def of_any_size(index: int) -> Tensor:
    """Neighbouring images differ in size."""
    return pixels(index, height=30 + index % 3 * 7, width=34 + index % 4 * 5)


def picture_of_any_size(index: int) -> PIL.Image.Image:
    return PIL.Image.fromarray(of_any_size(index).permute(1, 2, 0).numpy())


def jpeg(
    height: int = 37, width: int = 53, seed: int = 0, mode: str = "RGB", format: str = "JPEG", **options: Any
) -> bytes:
    """A file of noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(noise).convert(mode).save(file, format, **options)
    return file.getvalue()


def draws() -> tuple[Tensor, float, float]:
    """The next draws of torch, Python and numpy."""
    return torch.rand(()), random.random(), float(np.random.rand())


class Images(Dataset[Any]):
    """``(transform(make(index)), index, the draws that follow)``"""

    def __init__(self, transform: Callable[..., Any], make: Callable[[int], Any] = pixels, length: int = 10) -> None:
        self.transform = transform
        self.make_image = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.make_image(index)), index, draws()


class Sometimes(Images):
    """Its second group of eight samples needs pixels."""

    def __getitem__(self, index: int) -> Any:
        sample = self.transform(floats(index))
        return sample * sample.mean() if index == 9 else sample


def loader(dataset: Dataset[Any], **settings: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"batch_size": 4, **settings})


@dataclass
class Seen:
    """The batches of some epochs, and the draws in the main process after each epoch."""

    batches: list[Any]
    after: list[Any]


def seen(batches: Iterable[Any], epochs: int = 1, seed: int = 0) -> Seen:
    """Iterate with a seed."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    result = Seen([], [])
    for _ in range(epochs):
        result.batches += list(batches)
        result.after.append(draws())
    return result


def check_same(ours: Seen, theirs: Seen, device: torch.device, level: float | None = None) -> None:
    """Compare an offloaded loader's batches and draws with the plain loader's.

    ``level`` is the size of one level of a byte in the results, for chains that pass through bytes.
    """
    assert ours.after == theirs.after, "the main process's generators end elsewhere"
    assert len(ours.batches) == len(theirs.batches)
    for mine, want in zip(ours.batches, theirs.batches, strict=True):
        check_same_batch(mine, want, device, level)


def check_same_batch(mine: Any, want: Any, device: torch.device, level: float | None = None) -> None:
    assert _structure(mine) == _structure(want)
    for ours, theirs in zip(tree.leaves(mine), tree.leaves(want), strict=True):
        if isinstance(theirs, Tensor):
            assert ours.device.type == device.type
            _check_tensors(ours, theirs, level)
        else:
            assert ours == theirs


def _structure(batch: Any) -> Any:
    kinds: list[Any] = []

    def note(leaf: Any) -> Any:
        kinds.append((type(leaf), leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else type(leaf))

    return type(batch), repr(tree.map_leaves(batch, note)), kinds


def _check_tensors(ours: Tensor, theirs: Tensor, level: float | None) -> None:
    mine, want = ours.as_subclass(Tensor).cpu(), theirs.as_subclass(Tensor)
    if want.ndim < 3 or isinstance(theirs, tv_tensors.Mask):
        assert torch.equal(mine, want)
        return
    if level is None and not want.is_floating_point():
        level = 1
    apart = (mine.double() - want.double()).abs()
    floor = TOLERANCE * max(1.0, float(want.max()) - float(want.min())) if want.is_floating_point() else 0
    off = float((apart > floor).double().mean())
    if level is None:
        assert off == 0, f"off by up to {float(apart.max()):.3g} on {off:.2%} of the pixels"
    else:
        assert float(apart.max()) <= level + floor, f"off by {float(apart.max()):.3g} on {off:.2%} of the pixels"
        assert off <= SHARE, f"{off:.2%} of the pixels are off, by up to {float(apart.max()):.3g}"


def moved(offloaded: OffloadedLoader) -> list[str]:
    """The links that move, by transform."""
    return [" ".join(piece.moves) for piece in offloaded.plan.pieces]


def stayed(offloaded: OffloadedLoader) -> list[str]:
    """The links that stay, by transform."""
    return [" ".join(piece.stays) for piece in offloaded.plan.pieces]
