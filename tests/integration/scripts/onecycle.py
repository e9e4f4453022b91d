"""OneCycleLR knows how many steps there will be, and raises when there is one more."""

import argparse

from ordinary import batches_of, optimizer, step
from torch.optim.lr_scheduler import OneCycleLR

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5000)
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()

loader = batches_of(22, shuffle=True, num_workers=args.workers)  # 6 batches, the last of them short
scheduler = OneCycleLR(optimizer, max_lr=1e-5, total_steps=args.epochs * len(loader))
for _epoch in range(args.epochs):
    seen = 0
    for x, y in loader:
        step(x, y)
        scheduler.step()
        seen += 1
    assert seen == len(loader) == 6, seen
assert scheduler.last_epoch == args.epochs * 6
