"""Training by steps rather than epochs: ``next(it)`` in a ``while True``."""

from ordinary import batches_of, step

loader = batches_of(120, shuffle=True)
it = iter(loader)
epoch_steps = 0
while True:
    try:
        x, y = next(it)
    except StopIteration:
        assert epoch_steps == len(loader), epoch_steps
        epoch_steps = 0
        it = iter(loader)
        x, y = next(it)
    epoch_steps += 1
    step(x, y)
