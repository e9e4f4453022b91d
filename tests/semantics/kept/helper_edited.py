"""A function of a helper module, by import helper; the module is edited between two runs."""

import torch
from torch.utils.data import DataLoader, Dataset

import helper
from record import alive, called, files, finish, trainer


class Data(Dataset):
    def __init__(self):
        self.paths = files("npz")
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = torch.from_numpy(helper.load(self.paths[i]))
        return x, i % 2


def main():
    step = trainer()
    loader = DataLoader(Data(), batch_size=4, num_workers=2)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()
