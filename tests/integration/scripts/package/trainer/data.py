"""The data, imported relatively by its sibling."""

import time

import torch
from torch.utils.data import Dataset


class SiblingData(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.full((8,), float(index % 9)), torch.ones(1)
