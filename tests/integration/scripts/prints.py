"""Prints a line for every step, and leaves a mark for every run."""

from ordinary import batches_of, step

with open("runs.txt", "a") as file:
    file.write("run\n")
for number, (x, y) in enumerate(batches_of(100_000, num_workers=1)):
    step(x, y)
    print(f"step {number}", flush=True)
