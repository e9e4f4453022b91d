"""Train on batches that no DataLoader makes: each takes 30 ms, in `slow`."""

import sys
import time

import torch

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


if __name__ == "__main__":
    for _ in range(100):
        {"counted": counted, "drawn": drawn, "of-a-class": of_a_class}[FORM](40)
    print("trained")
