"""Trains on batches that cost the loop time if they come in the workers' own memory.

The hand-off alone is for a GPU. Here pipediag is told that it may be tried on the CPU, and packs batches as for a GPU.
"""

import argparse
import time

import torch
from ordinary import classifies
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchvision.transforms import v2

import pipediag.remedy.handoff
import pipediag.remedy.loader
from pipediag.replay.plan import Plan
from pipediag.streams.to_device import ToDevice, packing

parser = argparse.ArgumentParser()
parser.add_argument("--ms", type=float, default=12.0, help="milliseconds that such a batch costs")
parser.add_argument("--packed-ms", type=float, default=0.0, help="milliseconds that any other batch costs")
parser.add_argument("--chain", choices=["none", "slow"], default="none")
parser.add_argument("--stream", action="store_true", help="the dataset is iterable")
parser.add_argument("--wants", choices=["anything", "host-memory"], default="anything")
parser.add_argument("--refuse", default="", help="why the hand-off is impossible")
parser.add_argument("--batches", type=int, default=1000, help="in an epoch")
parser.add_argument("--epochs", type=int, default=100_000)
parser.add_argument("--losses", action="store_true", help="print every loss")
args = parser.parse_args()

pipediag.remedy.handoff.why_not = lambda loader, device: args.refuse
pipediag.remedy.loader.feed_of = lambda loader, device: AsForGpu(loader, Plan(), device)


class AsForGpu(ToDevice):
    def begin(self):
        return iter(packing(self._loader, None))


def dim(image):
    """Moves, and is slow there: a whole batch at once."""
    time.sleep(0.03 if image.ndim == 4 else 0.0)
    return image * 0.5


class Images(Dataset):
    def __init__(self):
        self.transform = v2.Compose([dim]) if args.chain == "slow" else None

    def __len__(self):
        return 16 * args.batches

    def __getitem__(self, index):
        image = (torch.arange(3 * 12 * 12).reshape(3, 12, 12) * (index % 7 + 1) % 256).float()
        return image if self.transform is None else self.transform(image), index % 4


class Stream(IterableDataset):
    def __iter__(self):
        worker, images = get_worker_info(), Images()
        return (images[index] for index in range(worker.id, len(images), worker.num_workers))


torch.manual_seed(0)
loader = DataLoader(Stream() if args.stream else Images(), batch_size=16, shuffle=not args.stream, num_workers=2)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
step = classifies(model, 1e-4)
for _epoch in range(args.epochs):
    for images, labels in loader:
        if images.is_shared():
            time.sleep(args.ms / 1000)
        elif args.wants == "host-memory":
            raise RuntimeError("this loop wants its batches as the workers made them")
        else:
            time.sleep(args.packed_ms / 1000)
        loss = step(images, labels)
        time.sleep(0.004)
        if args.losses:
            print(f"{loss:.9f}")
