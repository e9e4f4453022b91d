"""Trains on samples that cost a millisecond until the planted fault comes, alone or as a rank of a job."""

import argparse
import asyncio
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from odd import with_odd
from planted import KINDS, Planted

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=[*KINDS, "none"], default="none")
parser.add_argument("--at", default="")
parser.add_argument("--only", default="", help="the fault is planted for this --rate alone")
parser.add_argument("--rank", default="", help="the fault is planted in this rank alone")
parser.add_argument("--rate", default="0.01")
parser.add_argument("--broken", default="", choices=["", "init", "collate", "all", "replay", "empty", "stream"])
parser.add_argument("--odd", default=":", help="CLASS,...:PROTOCOL, which raises")
parser.add_argument("--tries", type=int, default=1, help="train again after an error, so many times in all")
parser.add_argument("--starts", type=int, default=0, help="the fault comes only in so many starts of torchrun's")
parser.add_argument("--place", default="main", help="where main() runs: main, thread, asyncio, executor, fork")
parser.add_argument("--vision", action="store_true", help="transforms that can move")
parser.add_argument("--files", action="store_true", help="share tensors by files")
parser.add_argument("--no-loader", action="store_true")
parser.add_argument("--no-training", action="store_true")
parser.add_argument("--samples", type=int, default=100_000)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--size", type=int, default=32)
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()
rank = os.environ.get("RANK", "")
again = args.starts and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) >= args.starts
kind = args.fault if args.only in ("", args.rate) and args.rank in ("", rank) and not again else "none"
planted = Planted(kind, args.at if kind != "none" else "")
planted.at("import")

import time  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate  # noqa: E402

PARTS, _, PROTOCOL = args.odd.partition(":")
PARTS = PARTS.split(",") if PARTS else []
ODD = {"none": None, "text": "some text", "sizes": torch.zeros(3, 5, 5)}


class Images(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 0 if args.broken == "empty" else args.samples

    def __getitem__(self, index):
        odd = planted.sample()
        if args.broken == "all":
            raise LookupError("the planted error")
        if odd == "sizes" and index % 2:
            return ODD[odd], 0
        if odd in ("none", "text"):
            return ODD[odd]
        time.sleep(0.001)
        image = torch.full((3, args.size, args.size), index % 251, dtype=torch.uint8)
        sample = self.transform(image), index % 4
        return Sample(sample) if "Sample" in PARTS else sample


class Asks(Images):
    """Asks for a type: what moves is then tried on samples, and not found out from the batches trained on."""

    def __getitem__(self, index):
        return super().__getitem__(type(index)(index))


class Stream(IterableDataset):
    def __init__(self, images):
        self.images = images

    def __iter__(self):
        for index in range(args.samples):
            yield self.images[index]


class Scale(nn.Module):
    def forward(self, image):
        return image / 255


class Once(nn.Module):
    """A transform that cannot take an image a second time."""

    def forward(self, image):
        if args.broken == "replay" and hasattr(image, "was_here"):
            raise LookupError("the planted error")
        image.was_here = True
        return image


class Order(Sampler):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        return iter(range(len(self.data)))


class Sample(tuple):
    """A sample of the user's own."""


class Batch:
    """A batch of the user's own."""

    def __init__(self, samples):
        self.images, self.labels = default_collate([tuple(one) for one in samples])

    def __iter__(self):
        return iter((self.images, self.labels))


class Model(nn.Sequential):
    pass


class Loader(DataLoader):
    pass


def collate(samples):
    if args.broken == "collate":
        raise LookupError("the planted error")
    return default_collate(samples)


def start(worker):
    if args.broken == "init":
        raise LookupError("the planted error")


for part in PARTS:
    globals()[part] = with_odd(globals()[part], PROTOCOL)


def train(loader, model, optimizer):
    step = 0
    for _ in range(0 if args.no_loader else args.epochs):
        for images, labels in loader:
            if step >= args.steps:
                break
            planted.step(step)
            loss = nn.functional.cross_entropy(model(images.to("cpu")), labels.to("cpu"))
            if not args.no_training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            step += 1


def main():
    if args.files:
        torch.multiprocessing.set_sharing_strategy("file_system")
    chain = nn.Sequential(Once(), Scale()) if args.broken == "replay" else Scale()
    if args.vision:
        from torchvision.transforms import v2

        ends = v2.ToDtype(torch.float32, scale=True) if "Scale" not in PARTS else chain
        chain = v2.Compose([v2.RandomHorizontalFlip(), ends])
    images = (Asks if args.at == "certification" else Images)(chain)
    collates = Batch if {"Batch", "Sample"} & set(PARTS) else collate if args.broken == "collate" else None
    loader = (Loader if "Loader" in PARTS else DataLoader)(
        Stream(images) if args.broken == "stream" else images,
        batch_size=8,
        num_workers=args.workers,
        sampler=Order(images) if "Order" in PARTS else None,
        collate_fn=collates,
        worker_init_fn=start,
    )
    model = Model(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    if rank:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(args.rate))
    for left in range(args.tries - 1, -1, -1):
        try:
            train(loader, model, optimizer)
            break
        except (LookupError, RuntimeError):
            if not left:
                raise
            planted.over()
    print("trained to its end", flush=True)


def in_a_thread():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(main).result()


def in_a_process():
    with ProcessPoolExecutor(1) as pool:
        pool.submit(main).result()


def in_a_fork():
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    main()


async def in_a_task():
    await asyncio.create_task(asyncio.to_thread(main))


PLACES = {
    "main": main,
    "thread": in_a_thread,
    "asyncio": lambda: asyncio.run(in_a_task()),
    "executor": in_a_process,
    "fork": in_a_fork,
}
if __name__ == "__main__":
    PLACES[args.place]()
