"""Train a small model for one epoch at a time, so that the loader limits."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .kinds import CLASSES

_FEATURES = 256


class Training:
    """One form's training. Two that get the same batches have the same losses, to the last bit.

    Attributes:
        seconds: of each epoch, from starting the workers to the last step's end on the device.
        cpu_s: CPU time of each epoch, in this process and its workers, which other programs change little.
        losses: of each epoch's steps.
    """

    def __init__(self, loader: DataLoader[Any], device: torch.device) -> None:
        self.loader = loader
        self.seconds: list[float] = []
        self.cpu_s: list[float] = []
        self.losses: list[list[float]] = []
        self._device = device
        torch.manual_seed(0)
        self._model = torch.nn.Linear(_FEATURES, CLASSES).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)

    def epoch(self) -> Iterator[int]:
        """Train for an epoch, and yield each step's number after it. Its seed is the number of epochs before it."""
        torch.manual_seed(len(self.seconds))
        losses = []
        began, cpu = time.perf_counter(), _cpu()
        for number, (inputs, labels) in enumerate(self.loader):
            losses.append(self._step(inputs, labels))
            yield number
        self.losses.append(torch.stack(losses).tolist())  # waits for the device
        self.seconds.append(time.perf_counter() - began)
        self.cpu_s.append(_cpu() - cpu)

    def _step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        logits = self._model(_features(inputs.to(self._device, non_blocking=True)))
        loss = torch.nn.functional.cross_entropy(logits, labels.to(self._device, non_blocking=True))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def _cpu() -> float:
    """Return the seconds of CPU time of this process and of the workers that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _features(inputs: Tensor) -> Tensor:
    """Return normalised means of neighbouring values, (batch, _FEATURES): a step that sees every value."""
    flat = inputs.flatten(1).float()
    means = torch.nn.functional.pad(flat, (0, -flat.shape[1] % _FEATURES)).view(len(flat), _FEATURES, -1).mean(2)
    return torch.nn.functional.layer_norm(means, (_FEATURES,))
