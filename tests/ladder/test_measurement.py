"""Which loaders of a script are one and the same, by a loop in this process on a fake clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, SubsetRandomSampler

from pipediag.errors import AnalysisOver
from pipediag.ladder.measurement import Measurement
from pipediag.ladder.plan import Plan
from pipediag.session import Session

from ..clock import Clock

RUNGS = ["device", "sample", "baseline"]


class Numbers(Dataset[Tensor]):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Tensor:
        self._clock.seconds += 0.01
        return torch.full((3,), float(index))


class ForTraining(BatchSampler):
    __len__ = None  # type: ignore[assignment]


class ForValidation(BatchSampler):
    __len__ = None  # type: ignore[assignment]


def by_sampler(data: Dataset[Tensor]) -> tuple[DataLoader[Any], DataLoader[Any]]:
    first, last = SubsetRandomSampler(range(160)), SubsetRandomSampler(range(160, 200))
    return DataLoader(data, 4, sampler=first), DataLoader(data, 4, sampler=last)


def by_halves(data: Dataset[Tensor]) -> tuple[DataLoader[Any], DataLoader[Any]]:
    first, last = SubsetRandomSampler(range(100)), SubsetRandomSampler(range(100, 200))
    return DataLoader(data, 4, sampler=first), DataLoader(data, 4, sampler=last)


def by_batch_sampler(data: Dataset[Tensor]) -> tuple[DataLoader[Any], DataLoader[Any]]:
    first, last = ForTraining(SequentialSampler(range(160)), 4, True), ForValidation(range(160, 200), 4, True)
    return DataLoader(data, batch_sampler=first), DataLoader(data, batch_sampler=last)


class Script:
    """A script that trains on a part of a dataset and validates on another until its measurement ends it."""

    def __init__(self) -> None:
        self.clock, self.session = Clock(100.0), Session()
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-9)
        self.validated: list[float] = []

    def train(self, loader: DataLoader[Any]) -> None:
        for batch in loader:
            self.model(batch).sum().backward()
            self.optimizer.step()
            self.clock.seconds += 0.02

    def validate(self, loader: DataLoader[Any]) -> None:
        for batch in loader:
            self.validated += batch[:, 0].tolist()

    def measured(self, epoch: Callable[[], None]) -> Measurement:
        measurement = Measurement(
            Plan(budget=60.0, rungs=RUNGS), self.session, lambda kind, data: None, lambda session: RUNGS, self.clock
        )
        with measurement.installed(), pytest.raises(AnalysisOver):
            while True:
                epoch()
        return measurement


@pytest.mark.parametrize("split", [by_sampler, by_halves, by_batch_sampler])
def test_two_loaders_over_one_dataset_are_apart(split: Callable[..., Any]) -> None:
    """Validation gets its own samples, not those of the training loader."""
    script = Script()
    training, validation = split(Numbers(script.clock))

    def epoch() -> None:
        script.validate(validation)
        script.train(training)

    script.measured(epoch)
    assert script.validated and min(script.validated) >= 100
    assert script.session.loader is not None
    line = Script.train.__code__.co_firstlineno + 1
    assert script.session.loader.where.endswith(f"test_measurement.py:{line}")
    assert set(RUNGS) <= {*script.session.measured()}


def test_a_loader_that_is_made_anew_for_every_epoch_is_one() -> None:
    script = Script()
    data = Numbers(script.clock)
    measurement = script.measured(lambda: script.train(DataLoader(data, 4, shuffle=True)))
    assert len(measurement.summary().loaders) == 1
    assert set(RUNGS) <= {*script.session.measured()}


def test_a_loader_that_joins_the_training_later_gets_its_own_samples() -> None:
    script = Script()
    seen: list[float] = []

    def endless(first: int) -> Iterator[Tensor]:
        loader = DataLoader(Numbers(script.clock), 4, sampler=range(first, first + 100))
        while True:
            yield from loader

    low, high = endless(0), endless(100)

    def epoch() -> None:
        for step in range(50):
            batches = [next(low)] if step < 10 else [next(low), next(high)]
            seen.extend(batch[:, 0].min().item() for batch in batches[1:])
            script.model(torch.cat(batches)).sum().backward()
            script.optimizer.step()
            script.clock.seconds += 0.02

    script.measured(epoch)
    assert min(seen) >= 100
    assert set(RUNGS) <= {*script.session.measured()}


def test_a_loader_that_joins_one_that_is_made_anew_gets_its_own_samples() -> None:
    """It joins in the second epoch, in which a successor of the first loader is measured."""
    script = Script()
    seen: list[float] = []
    epochs = itertools.count()

    def batches(first: int) -> Iterator[Tensor]:
        return iter(DataLoader(Numbers(script.clock), 4, sampler=range(first, first + 100)))

    def epoch() -> None:
        low, high, joins = batches(0), None, next(epochs) > 0
        for step in range(25):
            script.model(next(low)).sum().backward()
            high = batches(100) if joins and step == 10 else high
            if high is not None:
                seen.append(next(high)[:, 0].min().item())
            script.optimizer.step()
            script.clock.seconds += 0.02

    script.measured(epoch)
    assert min(seen) >= 100
    assert set(RUNGS) <= {*script.session.measured()}


@pytest.mark.parametrize("one_dataset", [False, True])
@pytest.mark.parametrize("rebuilt", [False, True])
@pytest.mark.parametrize("optimizers", [1, 2])
def test_two_loaders_that_train_side_by_side_are_apart(optimizers: int, rebuilt: bool, one_dataset: bool) -> None:
    """The second of two loaders of one class, drawn from on one line, gets its own samples, in every epoch."""
    script = Script()
    shared = Numbers(script.clock)
    second = torch.optim.SGD(script.model.parameters(), lr=1e-9)
    low: list[float] = []
    high: list[float] = []

    def made() -> list[DataLoader[Any]]:
        datasets = [shared if one_dataset else Numbers(script.clock) for _ in range(2)]
        return [DataLoader(datasets[n], 4, sampler=range(100 * n, 100 * n + 100)) for n in range(2)]

    loaders = made()

    def epoch() -> None:
        iterators = [iter(loader) for loader in (made() if rebuilt else loaders)]
        for _ in range(25):
            for iterator, seen, optimizer in zip(iterators, (low, high), (script.optimizer, second), strict=True):
                batch = next(iterator)
                seen += batch[:, 0].tolist()
                script.model(batch).sum().backward()
                if optimizers == 2 or seen is high:
                    optimizer.step()
                script.clock.seconds += 0.02

    script.measured(epoch)
    assert max(low) < 100 <= min(high)
    assert set(RUNGS) <= {*script.session.measured()}
