"""The probe of the public scripts: a real loop in turns on its own and on cached batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.recipes.probe
from benchmarks.recipes.probe import VARIABLE

ROOT = Path(__file__).resolve().parent.parent.parent

SCRIPT = """
import time, torch
from torch.utils.data import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.ones(4)

class Again:
    def __init__(self, batches):
        self.batches = batches
    def __iter__(self):
        while True:
            yield from iter(self.batches)

class Endless(DataLoader):  # as YOLOv5's: one iterator for all epochs
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.iterator = super().__iter__()
    def __len__(self):
        return len(self.batch_sampler.batches)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = LOADER(Slow(), batch_size=2, num_workers=0)
while True:
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.01)
"""


@pytest.mark.parametrize("loader", [pytest.param("DataLoader", marks=pytest.mark.slow), "Endless"])
def test_a_loop_goes_through_many_epochs_of_cached_batches(tmp_path: Path, loader: str) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(SCRIPT.replace("LOADER", loader))
    asked = {"out": str(out), "phases": ["plain", "host", "plain:2"], "seconds": 0.5, "batches": 2}
    env = {**os.environ, VARIABLE: json.dumps(asked), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, benchmarks.recipes.probe.__file__, str(script)], env=env, timeout=120)
    assert done.returncode == 0
    found = json.loads(out.read_text())
    assert found["complete"]
    plain, host = found["phases"]["plain"], found["phases"]["host"]
    assert found["length"] == 6
    assert host["steps"] > 6
    assert host["rate"] > 2 * plain["rate"]
    assert plain["waited"] > 0.5 * plain["seconds"]
    assert host["waited"] == 0
    assert found["phases"]["plain:2"]["waited"] > 0
