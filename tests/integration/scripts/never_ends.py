"""Trains for a while, then hangs: nobody asks for a batch any more."""

import time

from ordinary import batches_of, step

for number, (x, y) in enumerate(batches_of(10_000, num_workers=2)):
    step(x, y)
    if number == 80:
        break
while True:
    time.sleep(1)
