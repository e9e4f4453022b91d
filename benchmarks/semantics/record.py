"""Print what a training loop sees. A copy lies beside every script, which imports it as a module of its own."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import multiprocessing
import os
import random
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

#: Set in the environment of a run whose loaders are offloaded.
OFFLOADS = "SEMANTICS_OFFLOADS"
#: Largest number of values in the sketch of a tensor.
_SKETCHED = 40
#: Files of each kind.
FILES = 16
#: Every dataset of the script that still lives.
alive: weakref.WeakSet[Any] = weakref.WeakSet()
_calls = multiprocessing.Value("l", 0)


def called() -> None:
    """Count one call of user code, in whichever process."""
    with _calls.get_lock():
        _calls.value += 1


def saw(*values: Any) -> None:
    """Print one line: numbers and words as they are, everything else by type, shape, strides and digest."""
    print(*(value if isinstance(value, str) else describe(value) for value in values), flush=True)


def given(loader: Any) -> Any:
    """Return the loader, on the CPU by ``pipediag.offload`` if the run is to show that."""
    if not os.environ.get(OFFLOADS):
        return loader
    import pipediag

    loader = pipediag.offload(loader, "cpu")
    proof = "" if loader.certificate is None else f"the pixels are {loader.certificate.pixels}"
    print("pipediag: offloaded:", *str(loader.plan).splitlines(), proof, sep="; ", file=sys.stderr)
    return loader


def finish(calls: bool = True) -> None:
    """Print the generators' states, the number of calls if it is fixed, and how many datasets live."""
    gc.collect()
    states = (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes())
    saw("generators", *(_digest(state if isinstance(state, bytes) else repr(state).encode()) for state in states))
    if calls:
        saw("calls", _calls.value)
    saw("alive", len(alive))


def describe(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return f"{value.layout} {describe(value.to_dense())}"
    if isinstance(value, torch.Tensor):
        pixels = value.detach().cpu().contiguous().as_subclass(torch.Tensor).numpy()
        if value.is_floating_point():
            pixels = pixels + 0  # of 0.0 and -0.0, a clamp gives either, which depends on the place in memory
        kind += " requires grad" * value.requires_grad + " of inference" * value.is_inference()
        sketch = _sketch(value.detach()) if value.is_floating_point() or value.dtype == torch.uint8 else ""
        return f"{kind}({value.dtype} {tuple(value.shape)} {value.stride()} {_digest(pixels.tobytes())}{sketch})"
    if isinstance(value, np.ndarray):
        return f"{kind}({value.dtype} {value.shape} {value.strides} {_digest(value.tobytes())})"
    if isinstance(value, Image.Image):
        return f"{kind}({value.mode} {value.size} {_digest(value.tobytes())})"
    if isinstance(value, dict):
        return f"{kind}({', '.join(f'{key}={describe(inner)}' for key, inner in value.items())})"
    if isinstance(value, (list, tuple)):
        return f"{kind}({', '.join(map(describe, value))})"
    if dataclasses.is_dataclass(value):
        return f"{kind}({describe(vars(value))})"
    if isinstance(value, float):
        return f"{'' if kind == 'float' else kind}{value.hex()}"
    return repr(value)


def _sketch(value: torch.Tensor) -> str:
    """Return the mean and some values in their order, which tell pixels that are nearly equal from others."""
    values = (value.double().flatten() + 0) / (255 if value.dtype == torch.uint8 else 1)
    return f" ~{values.mean():.4f};{','.join(f'{one:.4g}' for one in values[:: len(values) // _SKETCHED + 1].tolist())}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=5).hexdigest()


def files(kind: str, folder: str = "data") -> list[str]:
    """Return the paths of files of this kind: png, jpeg, gifs (among PNGs), npz or large. Absent ones are written."""
    pictures = {"png": [".png"], "jpeg": [".jpg"], "gifs": [".png", ".png", ".png", ".gif"], "large": [".jpg"]}
    suffixes = pictures.get(kind, [".npz"])
    height, width = (300, 400) if kind == "large" else (12, 14)
    paths = [Path(folder, f"{kind}{n:02d}{suffixes[n % len(suffixes)]}") for n in range(FILES)]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for n, path in enumerate(paths):
        if path.exists():
            continue
        pixels = np.random.default_rng(n).integers(0, 256, (height, width, 3), dtype=np.uint8)
        if kind == "npz":
            np.savez(path, x=pixels.astype(np.float32).transpose(2, 0, 1) / 255)
        else:
            Image.fromarray(pixels).save(path)
    return [str(path) for path in paths]


def trainer() -> Any:
    """Return a function that trains a small model on a batch of pictures and labels, and prints both with the loss."""
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    torch.set_num_threads(1)
    model = torch.nn.Linear(48, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        pixels = batch[0].reshape(-1, *batch[0].shape[-3:]).float()
        labels = torch.as_tensor(batch[1], dtype=torch.float32).reshape(-1)
        guess = model(torch.nn.functional.adaptive_avg_pool2d(pixels, 4).flatten(1)).squeeze(1)
        loss = ((guess - labels) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        saw("step", batch, loss.item())

    return step
