"""The loop begins its loader anew in the handler of StopIteration: the generator of its sampler keeps its frame."""

import argparse
import random
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torch.utils.data import Sampler
from torch.utils.data import default_collate, get_worker_info
from torchvision.transforms import functional as TF, v2

from record import alive, called, files, finish, saw
from torchvision import transforms as T

N, EPOCHS = 16, 3


def brightened_by(x, level):
    if isinstance(x, list):
        return [TF.adjust_brightness(view, 1 + level / 8) for view in x]
    return TF.adjust_brightness(x, 1 + level / 8)


def solarized(x, threshold):
    floats = isinstance(x, torch.Tensor) and x.is_floating_point()
    return TF.solarize(x, threshold if floats else int(256 * threshold))


class OwnSampler(Sampler):
    def __init__(self, n):
        self.n, self.epoch = n, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.n).tolist())

    def __len__(self):
        return self.n


class DrawnSampler(OwnSampler):
    def __iter__(self):
        for i in random.sample(range(self.n), self.n):
            np.random.rand()
            yield i


class Shortened(DataLoader):
    def __len__(self):
        return max(1, super().__len__() - 1)

    def __iter__(self):
        return islice(super().__iter__(), len(self))


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor

    def pin_memory(self):
        return Batch(self.x.pin_memory(), self.y.pin_memory())


def collate_dataclass(samples):
    return Batch(*default_collate(samples))


class Data(Dataset):
    def __init__(self, n, transform, args=None):
        self.n, self.args = n, args
        self.labels = [i % 3 for i in range(n)]
        alive.add(self)
        self.paths = files("png")
        self._strength = 0

    @property
    def strength(self):
        called()
        return self._strength

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        called()
        x = Image.open(self.paths[i]).convert("RGB")
        y = self.labels[i]
        x = brightened_by(x, self.strength)
        x = brightened_by(x, getattr(get_worker_info(), "id", 0))
        x = Image.fromarray(np.asarray(x)[::-1].copy())
        threshold = float(torch.rand(()))
        x = solarized(x, threshold)
        x = v2.functional.to_dtype(v2.functional.to_image(x), torch.float32, scale=True)
        many = T.Compose([T.RandomVerticalFlip(), T.Resize((11, 10), antialias=True)])
        x = many(x)
        return x, y


def main():
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    torch.set_num_threads(1)
    args = argparse.Namespace(epoch=0)
    data = Data(N, None, args)
    dataset = data
    gathered = ConcatDataset([dataset, dataset])
    sampler = DrawnSampler(N)
    loader = Shortened(
        gathered,
        batch_size=4,
        sampler=sampler,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
        prefetch_factor=1,
        collate_fn=collate_dataclass,
        pin_memory=True,
    )
    val_loader = Shortened(
        dataset,
        batch_size=4,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
        prefetch_factor=1,
        collate_fn=collate_dataclass,
        pin_memory=True,
    )
    model = torch.nn.Linear(48, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    steps = []

    def loss_of(batch):
        x, y = batch.x, batch.y
        x, y = x.reshape(-1, *x.shape[-3:]), torch.as_tensor(y, dtype=torch.float32).reshape(-1)
        y = y.repeat_interleave(max(1, len(x) // len(y)))
        x = x.float() / (1 if x.is_floating_point() else 255)
        x = torch.nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
        return ((model(x).squeeze(1) - y) ** 2).mean()

    def step_on(batch):
        loss = loss_of(batch)
        loss.backward()
        saw("loss", loss.item())
        steps.append(0)
        optimizer.step()
        optimizer.zero_grad()

    def evaluate():
        model.eval()
        with torch.no_grad():
            for batch in val_loader:
                saw("val", batch, loss_of(batch).item())
        model.train()

    batches = None
    for epoch in range(EPOCHS):
        for step in range(5):
            try:
                batch = next(batches)
            except (TypeError, StopIteration):
                batches = iter(loader)
                batch = next(batches)
            saw("batch", str(epoch), str(step), batch)
            step_on(batch)
            if step == 1:
                data._strength = epoch
                data.labels[3] = epoch
            if step == 1:
                evaluate()
        scheduler.step()
    saw("weights", model.weight)


if __name__ == "__main__":
    main()
    finish(calls=False)
