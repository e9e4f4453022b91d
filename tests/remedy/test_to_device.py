"""The user's own code changes after it was moved."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms import v2

from pipediag import offload

from .sameness import Images, loader, pixels, seen


class Gain:
    """Scales the channels."""

    def __init__(self) -> None:
        self.gain = torch.tensor([0.8, 0.9, 1.1]).view(3, 1, 1)

    def __call__(self, image: Tensor) -> Tensor:
        return image * self.gain


def test_workers_make_the_epochs_after_a_change(device: torch.device) -> None:
    gain = Gain()
    plain = loader(Images(v2.Compose([v2.RandomCrop(24), v2.ToDtype(torch.float32, scale=True), gain]), pixels))
    offloaded = offload(plain, device)
    assert offloaded.plan.pieces[0].moves[-1] == "Gain"
    list(offloaded)
    assert not offloaded.why
    gain.gain = torch.tensor([2.0, 3.0, 4.0]).view(3, 1, 1)
    mine, theirs = seen(offloaded), seen(plain)
    assert "proven" in offloaded.why
    for (mine_images, *_), (their_images, *_) in zip(mine.batches, theirs.batches, strict=True):
        assert torch.equal(mine_images.cpu(), their_images)
