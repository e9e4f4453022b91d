"""The YOLO family's infinite loader: one iterator for ever, a sampler that repeats itself, epochs by counting."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class _RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", _RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Data(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        time.sleep(0.006)
        return torch.full((8,), float(index)), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = InfiniteDataLoader(Data(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
for _epoch in range(1000):
    seen = 0
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += 1
    assert seen == len(loader) == 12, seen
