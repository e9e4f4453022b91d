"""Prints everything that a script can know of how it was started, then its steps."""

import os
import sys
import time

print("argv", sys.argv)
print("file", __file__)
print("name", __name__, __package__, __spec__, __doc__)
print("path", sys.path[0])
print("cwd", os.getcwd())
print("stdin", sys.stdin.read())

from ordinary import batches_of, step  # noqa: E402

loader = batches_of(12)
for epoch in range(1_000_000):
    for number, (x, y) in enumerate(loader):
        step(x, y)
        time.sleep(0.03)
        print("epoch", epoch, "step", number, "of", len(loader), tuple(x.shape), flush=True)
