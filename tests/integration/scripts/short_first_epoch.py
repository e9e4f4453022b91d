"""Looks for a learning rate over a few steps, then trains in earnest: the first epoch is not like the rest."""

from ordinary import batches_of, step

loader = batches_of(100_000, shuffle=True)
for steps in (8, 1_000_000):
    for number, (x, y) in enumerate(loader, 1):
        step(x, y)
        if number == steps:
            break
