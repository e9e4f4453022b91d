"""Train on photos, epoch after epoch, through faults: corrupt files, and workers that are killed.

Arguments: the folder of photos, the file of results, and the minutes to train. Of every three epochs the first runs to
its end, the second meets a corrupt file, and in the third a worker is killed. What ends an epoch is caught, and written
with the epoch's losses and the memory at its end. Every epoch trains a new model.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader

from benchmarks.common import own_mib, shared_memory

#: Step of an epoch after which a worker is killed.
KILLED_AT = 20


def kills(epoch: int) -> bool:
    """Return whether a worker is killed in an epoch."""
    return epoch % 3 == 2


class Photos(ImageFolder):  # type: ignore[misc]
    """As :class:`~torchvision.datasets.ImageFolder`; in an epoch that spares corrupt files, the first file for them."""

    spares = True

    def __getitem__(self, index: int) -> Any:
        if self.spares and self.samples[index][0].endswith("corrupt.jpg"):
            index = 0
        return super().__getitem__(index)


def memory() -> dict[str, float]:
    return {
        "process_mib": round(own_mib(), 1),
        "gpu_of_torch_mib": round(torch.cuda.memory_reserved() / (1 << 20), 1) if torch.cuda.is_available() else 0.0,
        "open_files": len(os.listdir("/proc/self/fd")),
        "shared_memory": len(shared_memory()),
    }


def main(folder: str, out: str, minutes: str) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.use_deterministic_algorithms(True)
    chain = T.Compose([T.RandomResizedCrop(96), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4), T.ToTensor()])
    data = Photos(folder, chain, loader=pil_loader)
    loader = DataLoader(data, 32, shuffle=True, num_workers=3, pin_memory=device.type == "cuda")
    began, number = time.monotonic(), 0
    while time.monotonic() - began < 60 * float(minutes):
        data.spares = number % 3 != 1
        torch.manual_seed(number)
        model = nn.Sequential(nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8464, 16)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses, ended = [], ""
        try:
            for step, (images, labels) in enumerate(loader):
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if kills(number) and step == KILLED_AT:
                    victim = multiprocessing.active_children()[0].pid
                    assert victim is not None
                    os.kill(victim, signal.SIGKILL)
        except Exception as error:
            ended = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
            if len(losses) > KILLED_AT and kills(number):  # torch has several errors for it; which one is chance
                ended = "a worker died" if isinstance(error, (RuntimeError, OSError, EOFError)) else ended
            del error
        gc.collect()
        row = {"epoch": number, "ended": ended, "losses": losses, "at_s": round(time.monotonic() - began, 1)}
        with open(out, "a") as file:
            file.write(json.dumps({**row, **memory()}) + "\n")
        number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
