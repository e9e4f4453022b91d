"""A loader whose iterator draws its batches ahead in a thread, as a common recipe has it."""

import queue
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        time.sleep(0.010)
        return torch.full((8,), float(index)), torch.ones(1)


class Prefetched(threading.Thread):
    def __init__(self, batches):
        super().__init__(daemon=True)
        self.queue = queue.Queue(1)
        self.batches = batches
        self.start()

    def run(self):
        for batch in self.batches:
            self.queue.put(batch)
        self.queue.put(None)

    def __next__(self):
        batch = self.queue.get()
        if batch is None:
            raise StopIteration
        return batch

    def __iter__(self):
        return self


class PrefetchLoader(DataLoader):
    def __iter__(self):
        return Prefetched(super().__iter__())


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = PrefetchLoader(Data(), batch_size=4, num_workers=1)
for _ in range(100):
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.030)
        optimizer.step()
