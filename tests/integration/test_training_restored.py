"""``pipediag.diagnose`` trains, and afterwards nobody can tell: nor after an exception, nor after Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import pipediag
from pipediag.session import RUNG_MEANING

from .sandbox import slow

BUDGET = 3


class Noise(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(8)


class Training:
    """Adam, batch norm, dropout, a scheduler and a scaler. The step raises ``ends`` after so many calls."""

    def __init__(self, ends: BaseException | None = None, after: int = 40) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        self.ends, self.after, self.calls = ends, after, 0

    def step(self, batch: torch.Tensor) -> float:
        self.calls += 1
        if self.ends is not None and self.calls > self.after:
            raise self.ends
        self.optimizer.zero_grad()
        loss = self.model(batch).pow(2).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return loss.item()

    def losses(self, loader: DataLoader[Any]) -> list[float]:
        return [self.step(batch) for batch, _ in zip(loader, range(5), strict=False)]


@pytest.fixture(params=[pytest.param(0, marks=pytest.mark.slow), 2], ids=["in-process", "workers"])
def loader(request: pytest.FixtureRequest) -> DataLoader[Any]:
    return DataLoader(Noise(), batch_size=8, shuffle=True, num_workers=request.param)


def goes_on(loader: DataLoader[Any], training: Training) -> list[float]:
    """The next losses of a training that was measured, and that trains on from where it was."""
    training.ends = None
    return training.losses(loader)


@pytest.fixture
def expected(loader: DataLoader[Any]) -> list[float]:
    """The losses of a training that was not measured."""
    return Training().losses(loader)


def test_the_next_losses_are_as_if_nothing_had_been_measured(loader: DataLoader[Any], expected: list[float]) -> None:
    training = Training()
    diagnosis = pipediag.diagnose(loader, training.step, budget=BUDGET)
    assert training.calls > 20 and diagnosis.session.windows
    assert goes_on(loader, training) == expected
    restored = [one.message for one in diagnosis.warnings if one.code == "training-restored"]
    assert len(restored) == 1 and "the model, Adam, CosineAnnealingLR, GradScaler" in restored[0]
    assert not [one for one in diagnosis.warnings if one.code == "training-not-restored"]


@pytest.mark.slow
def test_what_was_learnt_can_be_kept(loader: DataLoader[Any], expected: list[float]) -> None:
    training = Training()
    diagnosis = pipediag.diagnose(loader, training.step, budget=1, keep_training=True)
    assert training.scheduler.last_epoch == training.calls > 5
    assert goes_on(loader, training) != expected
    assert not [one for one in diagnosis.warnings if one.code.startswith("training-")]


def test_an_exception_comes_out_unchanged_with_what_was_measured(
    loader: DataLoader[Any], expected: list[float]
) -> None:
    error = ValueError("a label is out of range")
    training = Training(error)
    with pytest.raises(ValueError, match="a label is out of range") as caught:
        pipediag.diagnose(loader, training.step, budget=30)
    assert caught.value is error and error.__cause__ is None and error.__context__ is None
    assert traceback.extract_tb(error.__traceback__)[-1].name == "step"
    diagnosis = error.diagnosis  # type: ignore[attr-defined]
    assert isinstance(diagnosis, pipediag.Diagnosis) and diagnosis.session.anything_seen
    assert diagnosis.session.ended == "script-failed"
    assert diagnosis.session.script.error == "ValueError: a label is out of range"
    notes = getattr(error, "__notes__", [])
    assert all("attribute `diagnosis`" in note for note in notes)
    assert goes_on(loader, training) == expected


def test_an_exception_under_a_rung_names_it() -> None:
    """A step that cannot take the same batch twice fails where batches are cached."""
    seen: set[int] = set()

    def step(batch: torch.Tensor) -> None:
        key = hash(batch.numpy().tobytes())
        assert key not in seen, "this batch was here before"
        seen.add(key)

    with pytest.raises(AssertionError, match="this batch was here before") as caught:
        pipediag.diagnose(DataLoader(Noise(), batch_size=8), step, budget=20, device="cpu")
    warnings = caught.value.diagnosis.warnings  # type: ignore[attr-defined]
    failed = next(one.message for one in warnings if one.code == "script-failed")
    assert any(f"the loop failed on {meaning}: " in failed for meaning in RUNG_MEANING.values())
    assert any("measured the loop on " in note for note in getattr(caught.value, "__notes__", [failed]))


def test_an_exception_before_anything_was_measured_has_no_note(loader: DataLoader[Any]) -> None:
    with pytest.raises(KeyError) as caught:
        pipediag.diagnose(loader, Training(KeyError("x"), after=0).step, budget=10)
    assert not hasattr(caught.value, "diagnosis") and not getattr(caught.value, "__notes__", [])


def test_ctrl_c_returns_what_was_measured(loader: DataLoader[Any], expected: list[float]) -> None:
    training = Training(KeyboardInterrupt())
    diagnosis = pipediag.diagnose(loader, training.step, budget=30)
    assert diagnosis.session.ended == "interrupted" and diagnosis.session.anything_seen
    assert goes_on(loader, training) == expected


@pytest.mark.parametrize("seconds", [0.0, *slow(0.05, 0.5)])
def test_a_signal_at_any_moment(loader: DataLoader[Any], expected: list[float], seconds: float) -> None:
    training = Training()
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))

    def progress(kind: str, data: dict[str, Any]) -> None:
        if kind == "window" and timer.ident is None:
            timer.start()

    diagnosis = pipediag.diagnose(loader, training.step, budget=60, progress=progress)
    # Python itself loses an interrupt that falls into the hooks of a fork, or into a destructor.
    assert diagnosis.session.ended in ("interrupted", "settled") and diagnosis.session.windows
    assert goes_on(loader, training) == expected


def test_ctrl_c_before_anything_was_measured_goes_through(loader: DataLoader[Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        pipediag.diagnose(loader, Training(KeyboardInterrupt(), after=0).step, budget=10)
