"""Train on pictures that a collate function turns into a batch by functions, without a transform object.

With ``--plan PATH``, save a plan for this loop there afterwards.
"""

from __future__ import annotations

import argparse
from typing import Any

import PIL.Image
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional as F


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        levels = torch.randint(0, 256, (3, 24 + index % 8, 28), generator=torch.Generator().manual_seed(index))
        return PIL.Image.fromarray(levels.to(torch.uint8).permute(1, 2, 0).numpy()), index % 4


def collate(samples: list[Any]) -> dict[str, Any]:
    images = []
    for picture, _ in samples:
        image = F.resize(F.pil_to_tensor(picture), [20, 20])
        image = F.horizontal_flip(image) if torch.rand(()) < 0.5 else image
        images.append(F.normalize(F.to_dtype(image[:, 2:18, 2:18], torch.float32, scale=True), [0.5] * 3, [0.5] * 3))
    return {"pixels": torch.stack(images), "labels": torch.tensor([label for _, label in samples])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Pictures(), 4, shuffle=True, num_workers=2, collate_fn=collate)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["pixels"]), batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex())
    if chosen.plan:
        save(loader, chosen.plan)


def save(loader: Any, path: str) -> None:
    """Save the plan of a loader whose loop is the one above, as if it had been measured to pay."""
    import dataclasses
    import json

    import pipediag
    from pipediag.remedy.summary import saved_plan

    with open(__file__) as file:
        line = next(k for k, text in enumerate(file, 1) if "for batch in loader" in text)
    plan = saved_plan(pipediag.offload(loader, "cpu", samples=8))
    plan = dataclasses.replace(plan, script="plain_code.py", where=f"plain_code.py:{line}")
    with open(path, "w") as file:
        json.dump(plan.to_dict(), file)


if __name__ == "__main__":
    main()
