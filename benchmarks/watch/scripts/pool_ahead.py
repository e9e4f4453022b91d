"""Processes of a pool make the batches, without torch's loader; the loop asks for the results in order."""

import multiprocessing

import torch
from pace import arguments, fed, make_sample, timed, trainer

BATCH = 16


class Maker:
    def __init__(self, work: int) -> None:
        self.work = work

    def __call__(self, number: int) -> torch.Tensor:
        torch.set_num_threads(1)
        return torch.stack([make_sample(number + place, self.work) for place in range(BATCH)])


def main() -> None:
    args, train = arguments(), trainer()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for begun, batch, got in timed(fed(pool.imap(Maker(args.work), range(10**6)), args.cached)):
            train(batch, got - begun)
            if args.cached:
                pool.terminate()


if __name__ == "__main__":
    main()
