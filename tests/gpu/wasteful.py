"""A training script that copies more to the device than it needs, from pageable memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class WholeBatches(Dataset[dict[str, Tensor]]):
    """Batches that lie ready in pageable memory."""

    def __init__(self) -> None:
        self.batch = {
            "image": torch.rand(64, 3, 256, 256),
            "mask": torch.randint(0, 19, (64, 256, 256)),
            "extra": torch.rand(64, 3, 256, 256),
        }

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.batch


def main() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    while True:
        for batch in DataLoader(WholeBatches(), batch_size=None):
            there = {name: tensor.to("cuda") for name, tensor in batch.items()}
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(there["image"]).float().square().mean() + there["mask"][:, ::64, ::64].float().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
