"""Trains on images whose preparation takes long sample by sample, and not when a batch is prepared at once."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

parser = argparse.ArgumentParser()
parser.add_argument("--ms", type=float, default=4.0, help="milliseconds that the slow transform takes, about")
parser.add_argument("--step-ms", type=float, default=1.0)
parser.add_argument("--chain", choices=["slow", "quick", "numpy"], default="slow")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--batches", type=int, default=1000, help="in an epoch")
parser.add_argument("--epochs", type=int, default=100_000)
parser.add_argument("--leave-after", type=int, help="batches after which every epoch is left")
parser.add_argument("--wants", choices=["anything", "host-memory", "a-pin"], default="anything")
parser.add_argument("--losses", action="store_true", help="print every loss")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def dim(image):
    """Many calls on a small image take long, and few on a batch do not."""
    for _ in range(round(CALLS * args.ms)):
        image = v2.functional.equalize(image)
    return image * 0.5


#: Calls on one image that take about a millisecond.
CALLS = 16


class ThroughNumpy:
    def __call__(self, image):
        return torch.from_numpy(image.numpy()[:, ::-1].copy())


class Images(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 16 * args.batches

    def __getitem__(self, index):
        image = (torch.arange(3 * 12 * 12).reshape(3, 12, 12) * (index % 7 + 1) % 256).to(torch.uint8)
        return self.transform(image), index % 4


LINKS = {"slow": [dim], "quick": [], "numpy": [ThroughNumpy()]}
chain = [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), *LINKS[args.chain]]

torch.manual_seed(args.seed)
loader = DataLoader(
    Images(v2.Compose(chain)),
    batch_size=16,
    shuffle=True,
    num_workers=args.workers,
    persistent_workers=args.persistent,
)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _epoch in range(args.epochs):
    seen = 0
    for images, labels in loader:
        assert images.shape == (16, 3, 12, 12) and labels.shape == (16,)
        if args.wants == "host-memory" and not images.is_shared():
            raise RuntimeError("this loop wants its batches as the workers made them")
        loss = nn.functional.cross_entropy(model(images.to("cpu")), labels.to("cpu"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(args.step_ms / 1000)
        if args.losses:
            print(f"{loss.item():.9f}")
        seen += 1
        if seen == args.leave_after:
            break
    assert seen == (args.leave_after or len(loader)) and len(loader) == args.batches
