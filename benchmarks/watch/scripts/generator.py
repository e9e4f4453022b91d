"""A generator of the script's own makes the batches, in the process that trains."""

from collections.abc import Iterator

import torch
from pace import arguments, fed, make_sample, timed, trainer

BATCH = 16


def batches(work: int) -> Iterator[torch.Tensor]:
    number = 0
    while True:
        yield torch.stack([make_sample(number + place, work) for place in range(BATCH)])
        number += BATCH


def main() -> None:
    args, train = arguments(), trainer()
    feed = batches(args.work) if not args.cached else fed(batches(args.work), True)
    for begun, batch, got in timed(feed):
        train(batch, got - begun)


if __name__ == "__main__":
    main()
