"""Semi-supervised training: labelled and unlabelled batches go into one step."""

import torch
from ordinary import Data, step
from torch.utils.data import DataLoader


class Labelled(Data):
    pass


class Unlabelled(Data):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]


labelled = DataLoader(Labelled(100, 0.005), batch_size=2, shuffle=True)
unlabelled = DataLoader(Unlabelled(600, 0.001), batch_size=6, shuffle=True)
for _epoch in range(1000):
    for (x, y), u in zip(labelled, unlabelled, strict=False):
        assert x.shape == (2, 8) and u.shape == (6, 8)
        step(torch.cat([x, u]), torch.cat([y, torch.zeros(6, 1)]))
