"""The callbacks, in real trainings of the frameworks; skipped where a framework is not installed."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .integration.sandbox import REPO

_DATA = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        time.sleep(0.01)
        return {"x": torch.randn(8), "labels": torch.tensor(0.0)}
"""
_LIGHTNING = (
    _DATA
    + """
import lightning.pytorch as L
from lightning.pytorch.loggers import CSVLogger
from pipediag import patches
from pipediag.integrations.lightning import DataMonitor

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, i): return self.layer(batch["x"]).square().mean()
    def validation_step(self, batch, i): self.layer(batch["x"])
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)

loader = DataLoader(Slow(), 4, num_workers=1, persistent_workers=True)
trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=CSVLogger(".", name="", version=""), log_every_n_steps=1,
                    callbacks=[DataMonitor(every=10)], enable_progress_bar=False, enable_checkpointing=False)
trainer.fit(Net(), loader, DataLoader(Slow(), 4))
trainer.loggers[0].save()
assert patches.LIVE == []
"""
)
_TRANSFORMERS = (
    _DATA
    + """
import json
from transformers import Trainer, TrainingArguments
from pipediag import patches
from pipediag.integrations.transformers import DataMonitor

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x, labels=None):
        out = self.layer(x).squeeze(-1)
        return {"loss": (out - labels).square().mean(), "logits": out}

arguments = TrainingArguments("out", per_device_train_batch_size=4, num_train_epochs=2, use_cpu=True, report_to=[],
                              save_strategy="no", dataloader_num_workers=1, disable_tqdm=True, logging_strategy="no",
                              eval_strategy="epoch")
trainer = Trainer(Net(), arguments, train_dataset=Slow(), eval_dataset=Slow())
trainer.add_callback(DataMonitor(trainer, every=10))
trainer.train()
assert patches.LIVE == []
with open("log.json", "w") as file:
    json.dump(trainer.state.log_history, file)
"""
)


def train(program: str, folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(program)
    ran = subprocess.run(
        [sys.executable, script.name], cwd=folder, env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def check(rows: list[dict[str, float]]) -> None:
    """15 steps in each of two epochs, of which one worker makes each in 40 ms; nearly all of that is waited for."""
    assert len(rows) in (2, 3)  # Lightning does not ask for a batch after the last one of an epoch
    for row in rows:
        assert 25 < row["data/wait_ms"] < row["data/step_ms"] and row["data/share"] > 0.5


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is not installed")
def test_lightning(tmp_path: Path) -> None:
    train(_LIGHTNING, tmp_path)
    with open(tmp_path / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row.get("data/share")]
    check([{name: float(row[name]) for name in row if name.startswith("data/")} for row in rows])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_transformers(tmp_path: Path) -> None:
    train(_TRANSFORMERS, tmp_path)
    check([row for row in json.loads((tmp_path / "log.json").read_text()) if "data/share" in row])
