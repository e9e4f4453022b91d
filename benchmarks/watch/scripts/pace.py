"""Let a script print its pace and its waiting; feed it from kept batches with ``--cached``, which gives the truth."""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

#: Batches that are kept, and seconds between two lines about the pace.
KEPT, EVERY = 8, 1.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=int, default=40, help="rounds of plain Python for a sample")
    parser.add_argument("--cached", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def make_sample(index: int, work: int) -> torch.Tensor:
    sample = torch.full((3, 32, 32), float(index % 7))
    for turn in range(work):
        sum(number * turn for number in range(400))
    return sample


def network() -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 7)
    )


def fed(batches: Iterable[Any], cached: bool) -> Iterator[Any]:
    """Return the batches, or the first of them again and again."""
    if not cached:
        return iter(batches)
    return itertools.cycle([*itertools.islice(iter(batches), KEPT)])


def timed(batches: Iterable[Any]) -> Iterator[tuple[float, Any, float]]:
    """Return the batches between the times before and after they were drawn, without a frame on the stack."""
    return zip(iter(time.perf_counter, None), batches, iter(time.perf_counter, None), strict=False)


class Pace:
    """Prints a line every second: seconds since the epoch, steps and seconds of waiting so far, and the rank."""

    def __init__(self) -> None:
        self.steps, self.said, self.waited = 0, time.time(), 0.0

    def step(self, waited: float = 0.0) -> None:
        self.steps += 1
        self.waited += waited
        now = time.time()
        if now - self.said >= EVERY:
            self.said = now
            print(f"{now:.3f} {self.steps} {self.waited:.4f} {os.environ.get('RANK', 0)}", flush=True)


def trainer() -> Callable[[torch.Tensor, float], None]:
    """Return a training step."""
    model, pace = network(), Pace()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train(batch: torch.Tensor, waited: float) -> None:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        pace.step(waited)

    return train


#: The pace of a script that calls this module within lines of its own.
PACE = Pace()
