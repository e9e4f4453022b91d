"""Says where it is, on standard error, and waits there if it is told to; ``pipediag run`` can move its transforms."""

import argparse
import os
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--wait-at", choices=["import", "first-batch"], default="")
parser.add_argument("--samples", type=int, default=100_000)
parser.add_argument("--size", type=int, default=32)
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()


def at(place):
    print(f"at {place}", file=sys.stderr, flush=True)
    if args.wait_at == place:
        time.sleep(120)


at("import")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402
from torchvision.transforms import v2  # noqa: E402


class Images(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        time.sleep(0.001)
        image = torch.full((3, args.size, args.size), index % 251, dtype=torch.uint8)
        return self.transform(image), index % 4


if __name__ == "__main__":
    chain = v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    loader = DataLoader(Images(chain), batch_size=8, num_workers=args.workers)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (images, labels) in enumerate(loader):
        if step == 0:
            at("first-batch")
        loss = nn.functional.cross_entropy(model(images.to("cpu")), labels.to("cpu"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with open("steps", "w") as file:
            file.write(f"{os.getpid()} {step}")
