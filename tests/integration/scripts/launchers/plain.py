"""Trains with DistributedDataParallel; torchrun, or ``torch.multiprocessing`` with ``--way``, starts the ranks."""

import os
import socket

import job
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler


def train(args):
    dist.init_process_group("gloo")
    sampler = DistributedSampler(job.Images(args.batches * job.BATCH * 2))
    loader = job.loader(args, sampler=sampler)
    model = DistributedDataParallel(job.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to("cpu")), labels.to("cpu"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            job.tell(dist.get_rank(), loss)
    dist.destroy_process_group()


def worker(rank, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    train(args)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    args = job.arguments()
    if args.way:
        mp.start_processes(worker, (free_port(), args), nprocs=2, start_method=args.way)
    else:
        train(args)
