"""What pipediag does in a worker is not charged to the script, and its places are the user's lines.

The transforms are of classes without methods of their own, in a module of 15,000 lines: parsing it takes some hundred
milliseconds, and a sample 4.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from .sandbox import Analysis, Sandbox

pytestmark = pytest.mark.slow

BEGINNING = """\
import time

class Base:
    def __call__(self, x):
        until = time.thread_time() + 1e-3
        while time.thread_time() < until:
            pass
        return x + 1
"""
FILLER = """
class Filler{n}(Base):
    level = {n}

    def helper(self, a, b={n}):
        return [a + b * k for k in range({n} % 7) if k != a and (k, a) not in {{(1, 2), (3, 4)}}]
"""
LAST = "\nclass Last(Base):\n    pass\n"
LONG_MODULE = BEGINNING + "".join(FILLER.format(n=n) for n in range(2500)) + LAST
SMALL_MODULE = """\
from long_module import Base

class Derived(Base):
    def __init__(self):
        pass

class Empty(Base):
    pass

Made = type("Made", (Base,), {"__module__": "long_module"})
"""
TRAINING = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

def train(loader, features=1):
    torch.set_num_threads(1)
    model = nn.Linear(features, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.reshape(len(x), -1)), y).backward()
        optimizer.step()
"""
SCRIPT = """\
from long_module import Last
from small_module import Derived, Empty, Made
from training import DataLoader, Dataset, torch, train

class Compose:
    def __init__(self, parts):
        self.parts = parts

    def __call__(self, x):
        for part in self.parts:
            x = part(x)
        return x

class Images(Dataset):
    def __init__(self):
        self.transform = Compose([Derived(), Empty(), Made(), Last()])

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.transform(torch.ones(1)), index % 10

if __name__ == "__main__":
    train(DataLoader(Images(), batch_size=4, num_workers=2))
"""
LIBRARY = """\
import time
from training import DataLoader, Dataset, torch, train

class Pictures(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(5e-3)
        return torch.ones(1), index % 10

class Trainer:
    def __init__(self, train_dataset):
        self.train_dataset = train_dataset

    def train(self):
        train(self.get_train_dataloader())

    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=4, num_workers=2)
"""
TRAINED_BY_A_LIBRARY = """\
import sys
sys.path.insert(0, "site-packages")
from a_library import Pictures, Trainer

def main():
    pictures = Pictures()
    trainer = Trainer(train_dataset=pictures)
    trainer.train()

if __name__ == "__main__":
    main()
"""


def line(source: str, text: str) -> int:
    (found,) = (number for number, one in enumerate(source.splitlines(), 1) if one.lstrip().startswith(text))
    return found


def windows(done: Analysis, key: str) -> list[Any]:
    return [one["evidence"][key] for one in done.json["session"]["windows"] if one["rung"] == "baseline"]


@pytest.fixture
def written(sandbox: Sandbox) -> Callable[..., Path]:
    """Writes source files where the script runs."""

    def write(**sources: str) -> Path:
        for name, source in sources.items():
            file = sandbox.cwd / f"{name.replace('__', '/')}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(dedent(source))
        return sandbox.cwd

    return write


def test_classes_of_a_long_module(analyze: Callable[..., Analysis], written: Callable[..., Path]) -> None:
    assert LONG_MODULE.count("\n") > 15_000
    cwd = written(long_module=LONG_MODULE, small_module=SMALL_MODULE, training=TRAINING, train=SCRIPT)
    done = analyze("train.py", cwd=cwd, rungs="baseline")
    # A batch of four samples takes 16 ms of a worker's CPU; a busy machine may take some times as long.
    assert done.ms("baseline") < 100
    assert max(windows(done, "worker_ms")) < 200
    assert max(windows(done, "own_ms")) < 10
    inside = done.json["session"]["inside"]
    assert {link["name"]: link["where"] for link in inside["links"]} == {
        "Derived": f"small_module.py:{line(SMALL_MODULE, 'class Derived')}",
        "Empty": f"small_module.py:{line(SMALL_MODULE, 'class Empty')}",
        "Made": f"train.py:{line(SCRIPT, 'self.transform = Compose')}",
        "Last": f"long_module.py:{line(LONG_MODULE, 'class Last')}",
    }
    assert all(1.0 <= link["cost"]["cpu_ms"] < 4.0 for link in inside["links"])
    assert inside["load"]["wall_ms"] < 4.0


def test_a_loop_of_a_library(analyze: Callable[..., Analysis], written: Callable[..., Path]) -> None:
    """The call of its trainer is no place, and its own files are named by their package."""
    cwd = written(**{"site-packages__a_library": LIBRARY, "training": TRAINING, "train": TRAINED_BY_A_LIBRARY})
    (cwd / "training.py").rename(cwd / "site-packages" / "training.py")
    done = analyze("train.py", cwd=cwd, rungs="device,baseline")
    loader, made = done.json["session"]["loader"], f"train.py:{line(TRAINED_BY_A_LIBRARY, 'pictures = ')}"
    assert (loader["where"], loader["iterated"]) == (made, f"train.py:{line(TRAINED_BY_A_LIBRARY, 'trainer.train')}")
    where = f"a_library.py:{line(LIBRARY, 'def __getitem__')}"
    assert loader["dataset_code"] == {"name": "Pictures.__getitem__", "where": where, "library": True, "made": made}
    assert "trainer.train" not in done.stdout and "site-packages" not in done.stdout
    assert f"a_library.py:{line(LIBRARY, 'time.sleep')}, made at {made}" in done.stdout
