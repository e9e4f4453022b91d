"""Trains from a webdataset that it writes first; one transform of its pipeline takes far longer than the rest."""

import io
import tarfile
import tempfile
import time

import torch
import webdataset
from torch.utils.data import DataLoader


class Planted:
    def __call__(self, number):
        time.sleep(0.02)
        return torch.full((4,), float(number))


class Cheap:
    def __call__(self, values):
        return values / 2


class Both:
    def __init__(self, *parts):
        self.parts = parts

    def __call__(self, value):
        for part in self.parts:
            value = part(value)
        return value


with tempfile.NamedTemporaryFile(suffix=".tar") as shard:
    with tarfile.open(shard.name, "w") as tar:
        for number in range(64):
            info = tarfile.TarInfo(f"{number}.cls")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"3"))
    dataset = webdataset.WebDataset(shard.name, shardshuffle=False).decode().to_tuple("cls")
    loader = DataLoader(dataset.map_tuple(Both(Planted(), Cheap())), batch_size=8, num_workers=1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(1000):
        for (values,) in loader:
            optimizer.zero_grad()
            model(values).sum().backward()
            optimizer.step()
