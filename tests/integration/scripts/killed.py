"""Ends as under the kernel's out-of-memory killer: no farewell at all."""

import os
import signal
import time

from ordinary import batches_of, step

for number, (x, y) in enumerate(batches_of(10_000, num_workers=2)):
    step(x, y)
    time.sleep(0.01)
    if number == 60:
        os.kill(os.getpid(), signal.SIGKILL)
