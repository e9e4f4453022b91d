"""Leans on everything that DataLoader promises: seeds, samplers, generators, the view from inside a worker."""

import argparse
import time

import torch
from ordinary import step
from torch.utils.data import DataLoader, Dataset, RandomSampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--sampler", choices=["distributed", "generator"], default="generator")
args = parser.parse_args()


class Data(Dataset):
    def __init__(self):
        self.prepared = args.workers == 0
        self.factor = 1.0

    def __len__(self):
        return 240

    def open(self):
        self.prepared = True

    def __getitem__(self, index):
        assert self.prepared, "worker_init_fn has not reached this data set"
        info = get_worker_info()
        assert (info is None) == (args.workers == 0)
        assert info is None or info.dataset is self, info.dataset
        time.sleep(0.008)
        return torch.full((8,), float(index)), torch.tensor([float(index)])


def prepare(worker_id):
    info = get_worker_info()
    assert info.id == worker_id and type(info.dataset) is Data, info.dataset
    info.dataset.open()
    assert info.dataset.factor == 1.0


def seeded():
    return torch.Generator().manual_seed(7)


dataset = Data()
distributed = DistributedSampler(dataset, num_replicas=2, rank=1, seed=3) if args.sampler == "distributed" else None
generator = seeded()
loader = DataLoader(
    dataset,
    batch_size=4,
    shuffle=distributed is None,
    sampler=distributed,
    num_workers=args.workers,
    persistent_workers=args.persistent,
    worker_init_fn=prepare,
    generator=generator,
)
loader.my_own_attribute = "stays"


def expected_first_batch():
    if distributed is not None:
        return list(distributed)[:4]
    # What a native loader draws from its generator: the workers' base seed, then the sampler's permutation.
    twin = seeded()
    torch.empty((), dtype=torch.int64).random_(generator=twin)
    return list(RandomSampler(dataset, generator=twin))[:4]


for epoch in range(1000):
    if distributed is not None:
        loader.sampler.set_epoch(epoch)
        assert loader.sampler is distributed and distributed.epoch == epoch
    for number, (x, y) in enumerate(loader):
        assert loader.dataset is dataset and loader.worker_init_fn is prepare and loader.generator is generator
        assert loader.my_own_attribute == "stays" and len(loader) == (30 if distributed is not None else 60)
        if epoch == number == 0:
            assert y.flatten().tolist() == expected_first_batch(), (y, expected_first_batch())
        step(x, y)
        time.sleep(0.002)
