"""A thread of the script's own reads ahead of the loop, slowly, as from a remote storage."""

import queue
import threading
import time
from collections.abc import Iterator

import torch
from pace import arguments, fed, make_sample, timed, trainer

BATCH = 16


class Ahead:
    def __init__(self, work: int) -> None:
        self.ready: queue.Queue[torch.Tensor] = queue.Queue(4)
        self.work = work
        threading.Thread(target=self.fill, daemon=True).start()

    def read(self, number: int) -> torch.Tensor:
        time.sleep(self.work / 5000)
        return make_sample(number, 0)

    def fill(self) -> None:
        number = 0
        while True:
            self.ready.put(torch.stack([self.read(number + place) for place in range(BATCH)]))
            number += BATCH

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield self.ready.get()


def main() -> None:
    args, train = arguments(), trainer()
    for begun, batch, got in timed(fed(Ahead(args.work), args.cached)):
        train(batch, got - begun)


if __name__ == "__main__":
    main()
