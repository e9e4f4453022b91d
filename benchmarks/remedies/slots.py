"""Divide the machine into slots with their own cores and GPU, so that several cases can be measured at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slot:
    """Cores, and the number of a GPU; None if there is none, or if the machine is not divided."""

    cores: frozenset[int]
    gpu: str | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        return {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": self.gpu}

    def pin(self) -> None:
        """Bind this thread, and every process that it starts, to the cores."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)


def divided(jobs: int, cores: Sequence[int], gpus: Sequence[str]) -> list[Slot]:
    """Divide the machine into equal slots of neighbouring cores; a single slot takes all of it.

    Raises:
        ValueError: there are fewer GPUs than slots on a machine with GPUs, or fewer than two cores for each slot.
    """
    if jobs == 1:
        return [Slot(frozenset(cores))]
    if gpus and len(gpus) < jobs:
        raise ValueError(f"{jobs} jobs need a GPU each; there are {len(gpus)}")
    share = len(cores) // jobs
    if share < 2:
        raise ValueError(f"{jobs} jobs need two cores each; there are {len(cores)}")
    parts = [frozenset(cores[job * share : (job + 1) * share]) for job in range(jobs)]
    return [Slot(part, gpus[job] if gpus else None) for job, part in enumerate(parts)]


def usable_cores() -> list[int]:
    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))


def usable_gpus() -> list[str]:
    """Return numbers, or the names in ``CUDA_VISIBLE_DEVICES``."""
    import torch

    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named or [str(number) for number in range(torch.cuda.device_count())]
