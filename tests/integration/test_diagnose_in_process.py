"""``pipediag.diagnose`` in the caller's own process: it measures, and leaves no trace of itself."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import pipediag
from pipediag.errors import AnalysisOver, NothingMeasured, UsageError


class Slow(Dataset[Any]):
    def __init__(self, length: int = 200, seconds: float = 0.004) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index >= self.length:
            raise IndexError(index)
        time.sleep(self.seconds)
        return torch.full((8,), float(index)), torch.ones(1)


class Step:
    """One optimizer step; counts its calls, and raises at the one it is told to."""

    def __init__(self, raises_at: int | None = None) -> None:
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.calls, self.raises_at = 0, raises_at

    def __call__(self, batch: Any) -> None:
        self.calls += 1
        if self.calls == self.raises_at:
            raise RuntimeError("out of memory, say")
        x, y = batch
        loss = (self.model(x) - y).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


@pytest.fixture(
    params=[0, 2, pytest.param("persistent", marks=pytest.mark.slow)], ids=["in-process", "workers", "persistent"]
)
def loader(request: pytest.FixtureRequest) -> Iterator[DataLoader[Any]]:
    """A loader that has to be as it was, afterwards, and to work."""
    workers = 2 if request.param == "persistent" else request.param
    loader = DataLoader(Slow(), batch_size=4, num_workers=workers, persistent_workers=request.param == "persistent")
    before = {name: value for name, value in vars(loader).items() if name != "_iterator"}
    yield loader
    after = {name: value for name, value in vars(loader).items() if name != "_iterator"}
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    try:
        batches = [x[0, 0].item() for x, _ in loader]
    except AnalysisOver:
        pytest.fail("the loader still raises pipediag's stop")
    assert batches == [4.0 * i for i in range(50)], "the loader does not work as it did"
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


def test_measures_and_leaves_no_trace(loader: DataLoader[Any]) -> None:
    step = Step()
    diagnosis = pipediag.diagnose(loader, step, budget=5)
    assert diagnosis.ladder.ms("device").value < diagnosis.ladder.ms("baseline").value / 2
    assert diagnosis.session.ended in ("settled", "budget")
    assert diagnosis.session.script.argv == []
    assert diagnosis.to_dict()["loader"]["dataset"] == "Slow"
    assert step.calls > 20


def test_an_error_of_the_step_comes_out_as_it_is(loader: DataLoader[Any]) -> None:
    with pytest.raises(RuntimeError, match="out of memory, say"):
        pipediag.diagnose(loader, Step(raises_at=30), budget=30)


def test_without_an_optimizer() -> None:
    loader = DataLoader(Slow(), batch_size=4)
    diagnosis = pipediag.diagnose(loader, lambda batch: time.sleep(0.001), budget=8, device="cpu")
    assert diagnosis.verdict.bottleneck == "load"
    assert diagnosis.session.device["type"] == "cpu"


def test_an_error_of_the_dataset_comes_out() -> None:
    data = Slow()
    data.length = 10_000_000
    loader = DataLoader(data, batch_size=4, sampler=[*range(40), 10_000_000])
    with pytest.raises(IndexError, match="10000000"):
        pipediag.diagnose(loader, Step(), budget=30)


@pytest.mark.slow
def test_twice_in_a_row(loader: DataLoader[Any]) -> None:
    first, second = (pipediag.diagnose(loader, Step(), budget=4) for _ in range(2))
    assert first.session is not second.session
    assert second.session.windows


def test_an_empty_loader() -> None:
    with pytest.raises(NothingMeasured, match="the loader is empty"):
        pipediag.diagnose(DataLoader(Slow(length=0)), Step(), budget=5)


def test_a_budget_that_ends_before_a_step_is_measured() -> None:
    with pytest.raises(NothingMeasured, match=r"the budget of 0.001 s ended before a step was measured"):
        pipediag.diagnose(DataLoader(Slow(seconds=0.05)), Step(), budget=0.001)


@pytest.mark.parametrize("budget", [0, -1.0, math.nan, math.inf, True, "60"])
def test_refuses_what_makes_no_sense(budget: Any) -> None:
    with pytest.raises(UsageError, match="budget"):
        pipediag.diagnose(DataLoader(Slow()), Step(), budget=budget)
    with pytest.raises(UsageError, match="an iterable of batches, not int"):
        pipediag.diagnose(3, Step(), budget=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not str"):
        pipediag.diagnose(DataLoader(Slow()), "Linear", budget=5)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_loader_with_a_timeout_gives_the_caches_time_to_fill() -> None:
    loader = DataLoader(Slow(seconds=0.03), batch_size=8, num_workers=1, timeout=1)
    diagnosis = pipediag.diagnose(loader, Step(), budget=25)
    assert diagnosis.session.inside is not None and diagnosis.session.inside.samples >= 8
    assert loader.timeout == 1
