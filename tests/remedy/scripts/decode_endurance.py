"""Read a folder of photos for several epochs, plainly or with decoding moved, and print what it took as JSON.

Arguments: folder, "plain" or "offloaded", "pillow" or "torchvision", start method, number of epochs, 1 for persistent
workers.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import PIL.Image
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from pipediag.remedy import loader, offload


def by_pillow(path: str) -> Any:
    return PIL.Image.open(path).convert("RGB")  # Pillow closes the file when it has decoded it


def by_torchvision(path: str) -> Any:
    return decode_image(path, ImageReadMode.RGB)


def resources() -> tuple[int, int]:
    """Return this process's number of open files and its own memory in KiB."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return len(os.listdir("/proc/self/fd")), (resident - shared) * os.sysconf("SC_PAGE_SIZE") // 1024


class Photos(ImageFolder):  # type: ignore[misc]
    def __getitem__(self, index: int) -> Any:
        while True:
            try:
                return *super().__getitem__(index), index, json.dumps([os.getpid(), *resources()])
            except (OSError, SyntaxError, RuntimeError):
                index = (index + 1) % len(self)


def main(folder: str, how: str, reader: str, start: str, epochs: str, persistent: str) -> None:
    chain = [v2.ToImage(), v2.RandomCrop(24), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
    data = Photos(folder, v2.Compose(chain), loader={"pillow": by_pillow, "torchvision": by_torchvision}[reader])
    source: Any = DataLoader(
        data, 16, shuffle=True, num_workers=2, persistent_workers=persistent == "1", multiprocessing_context=start
    )
    if how == "offloaded":
        loader.why_not = lambda device: ""  # a CPU decodes too
        source = offload(source, "cpu", approximate=True, samples=16)
        assert source.plan.decodes, source.plan
    told: list[dict[str, Any]] = []
    pids = {os.getpid()}
    for epoch in range(int(epochs)):
        torch.manual_seed(epoch)
        digest, files, memory = hashlib.sha256(), 0, 0
        for images, labels, indices, taken in source:
            for values in (images, labels, indices):
                digest.update(values.numpy().tobytes())
            for pid, number, kib in map(json.loads, taken):
                pids.add(pid)
                files, memory = max(files, number), max(memory, kib)
        del images, labels, indices, values
        gc.collect()
        own_files, own_memory = resources()
        shared = [name for name in os.listdir("/dev/shm") if name.startswith(tuple(f"torch_{pid}_" for pid in pids))]
        told.append(
            {
                "batches": digest.hexdigest(),
                "files": own_files,
                "memory": own_memory,
                "worker files": files,
                "worker memory": memory,
                "shared memory": shared,
            }
        )
    why = f"{source.unrecorded} unrecorded: {source.why}" if how == "offloaded" and source.unrecorded else ""
    print(json.dumps({"epochs": told, "why": why}))


if __name__ == "__main__":
    main(*sys.argv[1:])
