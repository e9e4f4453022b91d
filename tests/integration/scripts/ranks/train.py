"""Trains with DistributedDataParallel as one rank of a job; the launcher says which."""

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Data(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((8,), float(index))


def train(args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = Data(args.steps * 4 * dist.get_world_size())
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    for step, x in enumerate(loader):  # the loop
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        if step == args.at and rank == args.of:
            if args.ends == "raise":
                raise LookupError("sample 7 is damaged")
            if args.ends == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if args.ends == "hang":
                time.sleep(1000)
        if step == args.at:
            print(f"rank {rank} is training", flush=True)
    total = model.module.weight.detach().sum()
    dist.all_reduce(total)
    print(f"rank {rank} of {dist.get_world_size()}: {total.item():.6f}", flush=True)
    if rank == args.of:
        open("model.pt", "w").close()
    dist.destroy_process_group()


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ends", default="well")
    parser.add_argument("--at", type=int, default=10)
    parser.add_argument("--of", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    train(arguments())
