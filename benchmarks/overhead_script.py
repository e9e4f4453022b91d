"""A training script with adjustable speed that times itself, independent of pipediag."""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


def work(seconds: float) -> None:
    """Keep a core busy for ``seconds``."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Samples(Dataset[tuple[Tensor, int]]):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        work(self.seconds)
        return torch.ones(3, 32, 32), index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", choices=("loader", "step"), required=True)
    parser.add_argument("--rate", type=float, required=True, help="steps per second to aim for")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    step_time = 1.0 / args.rate
    slow, fast = step_time, 0.3 * step_time
    per_batch = args.workers * (slow if args.limit == "loader" else fast)
    loader = DataLoader(
        Samples(per_batch / 8), batch_size=8, num_workers=args.workers, pin_memory=device.type == "cuda"
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(loader)
    # Workers deliver in bursts, so the timed stretch consists of whole rounds of them.
    warmup = args.workers * max(3, int(args.rate) // args.workers)
    started = 0.0
    for step in range(10_000_000):
        # Timed from request to request, so that there are as many fetches as steps.
        if step == warmup:
            _synchronize(device)
            started = time.perf_counter()
        whole = step > warmup and (step - warmup) % args.workers == 0
        if whole and time.perf_counter() - started > args.seconds:
            _synchronize(device)
            print(f"steps/s {(step - warmup) / (time.perf_counter() - started):.6f}", flush=True)
            break
        images, labels = next(batches)
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        work(fast if args.limit == "loader" else slow)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
