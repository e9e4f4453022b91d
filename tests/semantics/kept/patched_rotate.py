import argparse
import contextvars
import copy
import io
import logging
import multiprocessing as mp
import os
import pickle
import queue
import random
import sys
import threading
import time
import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import cycle, islice
from types import SimpleNamespace

import numpy as np
import torch
import torchvision
from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageOps
from torch.overrides import TorchFunctionMode
from torch.utils.data import BatchSampler, ChainDataset, ConcatDataset, DataLoader, Dataset, IterableDataset
from torch.utils.data import RandomSampler, Sampler, Subset, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data import default_collate, get_worker_info, random_split
from torch.utils.data.distributed import DistributedSampler
from torchvision import tv_tensors
from torchvision.transforms import functional as TF, v2
from torchvision.transforms.functional import to_tensor, vflip

import helper
from helper import load
from record import alive, called, files, finish, given, saw
from torchvision.transforms import v2 as T
from torchvision.transforms.v2 import functional as F

N, EPOCHS = 16, 3


def multiplied_by(x, level):
    return [view * (1 + level / 4) for view in x] if isinstance(x, list) else x * (1 + level / 4)


def collate_listed(samples):
    return list(samples)


def make_transform():
    return T.Compose([T.AutoAugment(), T.Grayscale(3), T.PILToTensor()])


class Data(Dataset):
    def __init__(self, n, transform, args=None, reads=None):
        self.n, self.args = n, args
        self.labels = [i % 3 for i in range(n)]
        alive.add(self)
        self.transform = transform
        self.paths = files('gifs')
        self.reads = reads

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        called()
        x = Image.open(self.paths[i]).convert('RGB')
        y = self.labels[i]
        try:
            x = self.transform(x)
        except Exception:
            x = torch.zeros(3, 12, 14)
        x = x[..., 1:, :-1]
        x = multiplied_by(x, self.reads())
        return x, y


torch.manual_seed(3)
random.seed(4)
np.random.seed(5)
torch.set_num_threads(1)
args = argparse.Namespace(epoch=0)
box = [0]
reads = lambda: box[0]
transform = make_transform()
data = Data(N, transform, args, reads=reads)
dataset = data
gathered = Subset(dataset, [*range(9, N), *range(9)])
loader = DataLoader(gathered, batch_size=4, sampler=WeightedRandomSampler(torch.arange(1.0, N + 1), N), drop_last=True, collate_fn=collate_listed)
other = DataLoader(gathered, batch_size=4, sampler=SubsetRandomSampler(list(range(1, 12, 2))), drop_last=True, collate_fn=collate_listed)
model = torch.nn.Linear(48, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = []

def loss_of(batch):
    batch = default_collate(batch)
    x, y = batch[0], batch[1]
    x, y = x.reshape(-1, *x.shape[-3:]), torch.as_tensor(y, dtype=torch.float32).reshape(-1)
    y = y.repeat_interleave(max(1, len(x) // len(y)))
    x = x.float() / (1 if x.is_floating_point() else 255)
    x = torch.nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
    return ((model(x).squeeze(1) - y) ** 2).mean()

def step_on(batch):
    loss = loss_of(batch)
    loss.backward()
    saw('loss', loss.item())
    steps.append(0)
    optimizer.step()
    optimizer.zero_grad()

for epoch in range(EPOCHS):
    if epoch == 1:
        original = Image.Image.rotate

        def patched(*given, **named):
            called()
            return original(*given, **named)

        Image.Image.rotate = patched
    box[0] = epoch
    loader.sampler.weights[:4] = epoch + 1.0
    for step, batch in enumerate(loader):
        saw('batch', str(epoch), str(step), batch)
        step_on(batch)
    for batch in other:
        saw('other', batch)
        step_on(batch)
saw('patched', Image.Image.rotate.__name__)
saw('weights', model.weight)
for name in 'batch batches ahead again data dataset gathered kept loader other train val val_loader sampler extra'.split():
    globals().pop(name, None)
finish(calls=True)
