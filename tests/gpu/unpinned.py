"""A training script whose workers are quick, and whose batches come from pageable memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[Tensor]):
    """Whole batches that lie ready."""

    def __init__(self) -> None:
        self.batch = torch.rand(32, 3, 256, 256)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        return self.batch


def main() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    while True:
        for images in DataLoader(Images(), batch_size=None, num_workers=2):
            loss = model(images.to("cuda", non_blocking=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
