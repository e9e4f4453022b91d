"""A program that uses pipediag, until the planted fault comes; it then says what is left of it in this process."""

import argparse
import gc
import itertools
import multiprocessing
import os
import re
import threading
import time

from planted import KINDS, Planted, say

USES = ["early-break", "iterator-closed", "iterator-dropped", "loader-dropped", "two-iterators", "kept-to-the-end"]

parser = argparse.ArgumentParser()
parser.add_argument("command", choices=["diagnose", "offload", "StagePipeline", "cache"])
parser.add_argument("--fault", choices=[*KINDS, *USES, "none"], default="none")
parser.add_argument("--at", default="")
parser.add_argument("--wrong", default="", help="make this call, with an argument that does not fit")
parser.add_argument("--uncaught", action="store_true", help="let the fault's exception end the program")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--samples", type=int, default=160)
args = parser.parse_args()
planted = Planted(args.fault, args.at if args.fault in KINDS else "")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import pipediag  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Mappings of memory that processes share, or that a device reads: torch's, Python's, and nameless files.
SHARED = re.compile(r"/dev/shm/|/memfd:|/dev/zero|\[anon_shmem")


def scaled(image):
    return image / 255


def chain():
    if args.command != "offload":
        return scaled
    from torchvision.transforms import v2

    return v2.Compose([v2.Resize(24), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])


class Images(Dataset):
    def __init__(self):
        self.transform = chain()

    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        if planted.sample() == "none":
            return None
        return self.transform(loaded(index)), index % 4


@pipediag.pure
def loaded(index):
    time.sleep(0.001)
    return torch.full((3, 32, 32), index % 251, dtype=torch.uint8)


class Training:
    def __init__(self):
        self.model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.steps = 0

    def step(self, batch):
        planted.step(self.steps)
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images.to(DEVICE).float()), labels.to(DEVICE))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1


def encode(batch):
    images, labels = batch
    encode.calls = getattr(encode, "calls", 0) + 1
    planted.at("stage" if encode.calls > 5 else "first-stage")
    return images * 0.5, labels


class Learns(nn.Module):
    """A stage that is not frozen."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, batch):
        return self.norm(batch[0])


def plain_loader():
    return DataLoader(Images(), batch_size=8, num_workers=args.workers)


def made():
    """What the command makes of a loader."""
    loader = plain_loader()
    if args.command == "offload":
        return pipediag.offload(loader, DEVICE, samples=16)
    if args.command == "cache":
        return pipediag.cache(loader, folder="samples" if args.fault.startswith("cache") else None)
    return pipediag.StagePipeline(loader, [encode], DEVICE)


def used(training):
    if args.command == "diagnose":
        diagnosis = pipediag.diagnose(plain_loader(), training.step, budget=20.0, knobs=False)
        say(f"diagnosed: {diagnosis.session.ended}, {len(diagnosis.session.windows)} windows")
        return
    loader = made()
    for _ in range(2):
        epoch(loader, training)
        planted.at("second-epoch")
    say(f"batches: {training.steps}")
    if args.fault == "loader-dropped":
        iterator = iter(loader)
        training.step(next(iterator))
        del loader
        gc.collect()
        for batch in itertools.islice(iterator, 3):
            training.step(batch)
    elif args.fault == "kept-to-the-end":
        training.kept = iter(loader)
        training.step(next(training.kept))


def epoch(loader, training):
    if args.fault == "two-iterators":
        for batch, other in zip(loader, loader, strict=True):
            training.step(batch)
            training.step(other)
        return
    iterator = iter(loader)
    for batch in iterator:
        training.step(batch)
        if args.fault in USES[:3] and training.steps % 8 == 5:
            break
    if args.fault == "iterator-closed" and hasattr(iterator, "close"):
        iterator.close()
    del iterator
    gc.collect()


def wrong_call():
    """A call that is refused."""
    loader, step = DataLoader(Images(), batch_size=8), print
    calls = {
        "diagnose-number": lambda: pipediag.diagnose(1, step),
        "diagnose-no-function": lambda: pipediag.diagnose(loader, 3),
        "diagnose-nan": lambda: pipediag.diagnose(loader, step, budget=float("nan")),
        "diagnose-text": lambda: pipediag.diagnose(loader, step, budget="long"),
        "diagnose-empty": lambda: pipediag.diagnose(DataLoader([], batch_size=8), step),
        "offload-list": lambda: pipediag.offload([1, 2], "cpu"),
        "offload-device": lambda: pipediag.offload(loader, "cuda:99"),
        "pipeline-stage": lambda: pipediag.StagePipeline(loader, [3], "cpu"),
        "pipeline-depth": lambda: pipediag.StagePipeline(loader, [encode], "cpu", depth=0),
        "pipeline-statistics": lambda: next(iter(pipediag.StagePipeline(loader, [Learns()], "cpu"))),
        "cache-list": lambda: pipediag.cache([1, 2]),
        "cache-nbytes": lambda: pipediag.cache(loader, nbytes=1.5),
        "cache-file": lambda: pipediag.cache(loader, folder=__file__),
        "cache-proc": lambda: pipediag.cache(loader, folder="/proc/none"),
    }
    calls[args.wrong]()


def warm_up():
    """Let torch and Python open what they keep from their first worker and their first shared tensor on."""
    for _ in plain_loader():
        pass
    queue = torch.multiprocessing.get_context().Queue()
    queue.put(torch.zeros(1))
    queue.get()
    queue.close()


def here():
    """What this process holds that outlives an iterator, by kind."""
    descriptors = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            descriptors[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # that of the listing itself
            continue
    with open("/proc/self/maps") as maps:
        shared = sum(bool(SHARED.search(line)) for line in maps)
    return {
        "children": len(multiprocessing.active_children()),
        "descriptors": len(descriptors),
        "threads": len([one for one in threading.enumerate() if one.name.startswith(("pipediag", "QueueFeeder"))]),
        "mappings": shared,
        "pinned": torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) if DEVICE.type == "cuda" else 0,
    }


def left_since(before):
    """What is more than before, once it had a moment to vanish."""
    gc.collect()  # here torch waits for each worker, 5 s at most, and then ends it
    until = time.monotonic() + 6.0
    while True:
        gc.collect()
        more = {kind: number - before[kind] for kind, number in here().items() if number > before[kind]}
        if not more or time.monotonic() > until:
            return more
        time.sleep(0.1)


def main():
    if args.wrong:
        wrong_call()
        return
    training = Training()
    with planted.held_back():
        warm_up()
    before = here()
    parameters = [p.detach().clone() for p in training.model.parameters()]
    try:
        used(training)
    except BaseException as error:
        if args.uncaught:
            raise
        say(f"ended: {type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error) else ''}")
        if hasattr(error, "diagnosis"):
            say(f"kept: {len(error.diagnosis.session.windows)} windows, {error.diagnosis.session.ended}")
    if args.command == "diagnose":
        same = all(torch.equal(a, b) for a, b in zip(parameters, training.model.parameters(), strict=True))
        say("restored: the training" if same else "lost: the training")
    if args.fault != "kept-to-the-end":
        say(f"left: {left_since(before) or 'nothing'}")
    args.fault = planted.kind = "none"
    planted.moment = ""
    planted._armed[0] = 0
    if args.command != "diagnose":
        say(f"again: {sum(1 for _ in made())} batches")


if __name__ == "__main__":
    main()
