"""A training with all that belongs to one: validation, a schedule of exact length, a sampler, checkpoints."""

import argparse
import sys
import time

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.transforms import v2

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--ending", choices=["end", "exit", "raise", "dataset", "wait"], default="end")
args = parser.parse_args()


class Images(Dataset):
    def __init__(self, length, *links):
        self.length = length
        self.transform = v2.Compose([*links, v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])])

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if args.ending == "dataset" and index == 20:
            raise LookupError("sample 20 is damaged")
        return self.transform(torch.full((1, 6, 6), 5 * index, dtype=torch.uint8)), index % 3


torch.manual_seed(1)
print("argv", sys.argv, "stdin", sys.stdin.read())
print("main", __name__, sys.modules["__main__"].__file__ == __file__)
sampler = DistributedSampler(train := Images(30, v2.RandomHorizontalFlip()), num_replicas=2, rank=0, seed=5)
loader = DataLoader(train, batch_size=4, sampler=sampler, num_workers=args.workers)
validation = DataLoader(Images(6), batch_size=4)
model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = OneCycleLR(optimizer, max_lr=0.2, total_steps=args.epochs * len(loader))


@torch.no_grad()
def validate():
    model.eval()
    losses = [nn.functional.cross_entropy(model(x), torch.from_numpy(y.numpy())) for x, y in validation]
    model.train()
    return torch.stack(losses).mean().item()


for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    assert loader.sampler is sampler and loader.dataset is train and len(loader) == 4
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.9f} of {len(labels)}: {labels.tolist()}", flush=True)
    print(f"validation {validate():.9f}", flush=True)
    torch.save(model.state_dict(), "checkpoint.pt")
    if args.ending == "raise":
        raise ValueError("boom")
if args.ending == "wait":
    time.sleep(60)
if args.ending == "exit":
    sys.exit(3)
