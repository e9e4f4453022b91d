"""Workers by spawn or forkserver; the data set is a class of ``__main__``, behind the usual guard."""

import argparse
import time

from ordinary import Data, step
from torch.utils.data import DataLoader


class Slow:
    """A transform of the script's own."""

    def __call__(self, x):
        time.sleep(0.01)
        return x + 1


class Transformed(Data):
    def __init__(self):
        super().__init__(10_000, 0.0)
        self.transform = Slow()

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return self.transform(x), y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=["fork", "spawn", "forkserver"], required=True)
    args = parser.parse_args()
    for x, y in DataLoader(Transformed(), batch_size=4, num_workers=1, multiprocessing_context=args.method):
        step(x, y)


if __name__ == "__main__":
    main()
