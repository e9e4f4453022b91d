"""Train on batches that no DataLoader makes: each takes 30 ms, in `slow`."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, dataloader

FORM = sys.argv[1]
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def slow():
    time.sleep(0.03)
    return torch.randn(4, 8), torch.tensor([0, 1, 0, 1])


def batches(number):
    for _ in range(number):
        yield slow()


class Stream:
    def __init__(self, number):
        self.left = self.number = number

    def __len__(self):
        return self.number

    def __iter__(self):
        self.left = self.number
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return slow()


class Slow(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return slow()


class Doubled(dataloader._SingleProcessDataLoaderIter):
    """An iterator of a loader that takes its batches apart."""

    def __next__(self):
        features, labels = super().__next__()
        return 2 * features, labels


class Doubling(DataLoader):
    def _get_iterator(self):
        return Doubled(self)


def train(batch):
    loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad.clamp_(-1, 1)
    optimizer.step()


def counted(number):
    """A loop that is over once its counter says so."""
    for step, batch in enumerate(batches(number)):
        train(batch)
        if step == number - 1:
            break


def drawn(number):
    iterator = batches(number)
    for _ in range(number):
        train(next(iterator))


def of_a_class(number):
    for batch in Stream(number):
        train(batch)


def of_a_loader(number):
    for batch in Doubling(Slow(), batch_size=None):
        train(batch)


if __name__ == "__main__":
    for _ in range(100):
        forms = {"counted": counted, "drawn": drawn, "of-a-class": of_a_class, "of-a-loader": of_a_loader}
        forms[FORM](40)
    print("trained")
