"""A long training with workers, which a person will interrupt; with ``--asleep`` before it has begun."""

import sys
import time

if "--asleep" in sys.argv:
    print("asleep", file=sys.stderr, flush=True)
    time.sleep(60)

from ordinary import batches_of, step

for x, y in batches_of(1_000_000, num_workers=2):
    step(x, y)
    time.sleep(0.002)
