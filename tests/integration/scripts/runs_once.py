"""Trains for some steps, and refuses to run a second time in the same folder, in the way that the argument names."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument(
    "refusal", choices=["makedirs", "makedirs-last", "input", "exit", "words", "kill", "done", "raise-last"]
)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--reads", type=Path)
parser.add_argument("--predicts", action="store_true", help="no training: a loader and no optimizer")
args = parser.parse_args()

if args.reads is not None:
    print("read", args.reads.read_text())
if args.refusal == "makedirs":
    os.makedirs("runs/exp")
if Path("trained").exists():
    if args.refusal == "input":
        input("start anew? ")
    elif args.refusal == "exit":
        sys.exit(3)
    elif args.refusal == "words":
        sys.exit("the experiment is there already")
    elif args.refusal == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif args.refusal == "done":
        print("nothing left to do")
        sys.exit()


class Data(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
for step, (x, y) in enumerate(DataLoader(Data(), batch_size=4)):
    loss = (model(x) - y).pow(2).mean()
    if not args.predicts:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    time.sleep(0.01)
    if step + 1 >= args.steps:
        break
if args.refusal == "raise-last" and Path("trained").exists():
    raise RuntimeError("trained twice")
if args.refusal == "makedirs-last":
    os.makedirs("final")
Path("trained").touch()
