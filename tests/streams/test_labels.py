"""The work of a remedy is labelled in the user's own trace."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from pipediag import StagePipeline
from pipediag.remedy import offload

BATCHES = 3


class Images(Dataset[Tensor]):
    def __init__(self) -> None:
        self.transform = v2.RandomHorizontalFlip()

    def __len__(self) -> int:
        return 2 * BATCHES

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(torch.full((3, 8, 8), index, dtype=torch.uint8))


def labels(loader: Any) -> Counter[str]:
    """How often each of our labels occurs in the trace of one epoch."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        assert len(list(loader)) == BATCHES
    ours = (event for event in profiler.events() if event.is_user_annotation)
    return Counter(event.name for event in ours if event.name.startswith("pipediag"))


def brighter(batch: Tensor) -> Tensor:
    return batch + 1


def test_an_offloaded_loader_and_a_stage_are_labelled() -> None:
    offloaded = offload(DataLoader(Images(), batch_size=2), "cpu", samples=4)
    assert offloaded.plan.pieces
    waits = {"pipediag: wait for batch": BATCHES + 1}  # the last one finds the end of the epoch
    assert labels(offloaded) == {**waits, "pipediag: replay": BATCHES}
    stages = StagePipeline(DataLoader(Images(), batch_size=2), [brighter], "cpu")
    assert labels(stages) == {**waits, "pipediag: copy": BATCHES, "pipediag: stage brighter": BATCHES}
