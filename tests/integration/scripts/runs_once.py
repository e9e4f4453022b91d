"""Trains for some steps, and refuses to run a second time in the same folder, in the way that the argument names."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from ordinary import batches_of, step

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


for number, (x, y) in enumerate(batches_of(100_000, 0.002), 1):
    if not args.predicts:
        step(x, y)
    time.sleep(0.01)
    if number >= args.steps:
        break
if args.refusal == "raise-last" and Path("trained").exists():
    raise RuntimeError("trained twice")
if args.refusal == "makedirs-last":
    os.makedirs("final")
Path("trained").touch()
