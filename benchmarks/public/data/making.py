"""Make pictures, masks, recordings and sentences, and spread few of them over many files."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterable
from pathlib import Path

from ...recipes.data import picture

#: Distinct pictures, recordings and clouds; further files are links to these.
DISTINCT = 24
WORDS = 2000


def pictures(size: tuple[int, int], count: int = DISTINCT) -> list[bytes]:
    return [picture(seed, size) for seed in range(count)]


def png(jpeg: bytes) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(jpeg)).save(out, "PNG")
    return out.getvalue()


def blobs(seed: int, size: tuple[int, int], classes: int = 2) -> bytes:
    """Return a PNG mask of a few smooth areas; two classes are 0 and 255."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, classes, (6, 6), dtype=np.uint8) * (255 if classes == 2 else 1)
    out = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()


def spread(folder: Path, names: Iterable[str], contents: list[bytes]) -> None:
    """Write the contents in turn under the names; a repeated content is a link to its first file."""
    first: dict[int, Path] = {}
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        which = number % len(contents)
        if which in first:
            os.link(first[which], path)
        else:
            path.write_bytes(contents[which])
            first[which] = path


def speech(seed: int, seconds: float, rate: int) -> bytes:
    """Return a 16-bit wave file of a few gliding tones and noise."""
    import numpy as np
    from scipy.io import wavfile

    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * rate)) / rate
    wave = sum(np.sin(2 * np.pi * (f * at + 20 * np.sin(at * g))) for f, g in rng.uniform(1, 400, (6, 2)))
    wave = 0.1 * wave + rng.normal(0, 0.05, at.size)
    out = io.BytesIO()
    wavfile.write(out, rate, (np.clip(wave, -1, 1) * 32000).astype(np.int16))
    return out.getvalue()


def sentences(count: int, words: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    known = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(WORDS)]
    return [" ".join(rng.choices(known, k=rng.randint(words // 2, words))) for _ in range(count)]
