"""Starts processes of its own and tests in this one: by default they train, as Hogwild does."""

import argparse
import time

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 1200

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index))


def train(rank, model):
    for _ in range(2):
        train_epoch(model, torch.optim.SGD(model.parameters(), lr=0.001))


def train_epoch(model, optimizer):
    for x in DataLoader(torch.zeros(64, 8), batch_size=4):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


def log(rank, model):
    print("logging for", rank)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="fork")
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--spawn", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the processes are forked
    model = nn.Linear(8, 1).share_memory()
    function = log if args.log else train
    if args.spawn:
        mp.spawn(function, args=(model,), nprocs=1)
    else:
        context = mp.get_context(args.method)
        processes = [context.Process(target=function, args=(rank, model)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    with torch.no_grad():
        for x in DataLoader(Data(), batch_size=4):  # the test
            model(x)
            time.sleep(0.001)
