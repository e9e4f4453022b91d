"""Starts the ranks of a job by torch.multiprocessing, as pytorch/examples' main.py does."""

import os
import socket
import sys

import torch.multiprocessing as mp
from train import arguments, train


def worker(index, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(index), WORLD_SIZE="2")
    train(args)


if __name__ == "__main__":
    method = sys.argv.pop(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(worker, (port, arguments()), nprocs=2, start_method=method)
    print("both have trained")
