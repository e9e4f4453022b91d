"""Which loaders of a script are one and the same, by a loop in this process on a fake clock."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
)

from pipediag.errors import AnalysisOver
from pipediag.ladder import caches, loader_iterator, settling, windows
from pipediag.ladder import measurement as module
from pipediag.ladder.loader_iterator import Track
from pipediag.ladder.measurement import Measurement
from pipediag.ladder.single_steps import Observer
from pipediag.loop.training import Place
from pipediag.measure.schedule import Plan
from pipediag.session import Loader, Session
from pipediag.usercode.contents import settings

from ..clock import Clock
from ..things import Numbers

RUNGS = ["device", "sample", "baseline"]


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
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.steps = 0

    def train(self, loader: DataLoader[Any]) -> None:
        for batch in loader:
            self.step(batch)
            self.steps += 1

    def step(self, batch: Tensor) -> None:
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.clock.seconds += 0.02

    def validate(self, loader: DataLoader[Any]) -> None:
        for batch in loader:
            self.validated += batch[:, 0].tolist()

    def measured(self, epoch: Callable[[], None], budget: float = 30.0) -> Measurement:
        measurement = Measurement(
            Plan(budget=budget, rungs=RUNGS),
            self.session,
            lambda kind, data: self.sent.append((kind, data)),
            lambda session: RUNGS,
            self.clock,
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


def test_a_loop_that_leaves_its_epochs_early_is_known() -> None:
    script = Script()
    training = DataLoader(Numbers(script.clock), 4)
    assert len(training) == 50

    def epoch() -> None:
        for step, batch in enumerate(training):
            script.step(batch)
            if step == 14:
                return

    script.measured(epoch)
    assert script.session.loader is not None
    assert (script.session.loader.left_after, script.session.loader.epoch) == (15, 15)
    assert set(RUNGS) <= {*script.session.measured()}


def test_a_loop_that_makes_an_iterator_for_every_batch_is_measured() -> None:
    script = Script()
    training = DataLoader(Numbers(script.clock), 4)

    def epoch() -> None:
        script.step(next(iter(training)))

    script.measured(epoch, budget=15.0)
    assert script.session.loader is not None and script.session.loader.epoch == 1
    windows = {window.rung: window.ms_per_step for window in script.session.windows}
    assert windows == pytest.approx({"device": 20.0, "sample": 20.0, "baseline": 60.0})


@pytest.mark.parametrize("kept", [True, False])
def test_a_loop_that_keeps_the_batches_of_its_first_epoch(kept: bool) -> None:
    """As ``itertools.cycle`` does."""
    script = Script()
    training = DataLoader(Numbers(script.clock), 4)

    def epoch() -> None:
        batches = []
        for batch in training:
            script.step(batch)
            batches.append(batch)
        for batch in batches * 3 if kept else batches:
            script.step(batch)

    script.measured(epoch)
    warnings = [one for one in script.session.warnings if one.code == "kept-batches"]
    assert bool(warnings) is kept
    assert all("100 optimizer steps" in one.message for one in warnings)


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
            script.step(torch.cat(batches))

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


@pytest.mark.parametrize(("slow", "by", "measured"), [(0, 0.05, 0), (1, 0.05, 1), (1, 0.001, 0)])
def test_of_loaders_side_by_side_the_one_that_costs_most_is_measured(slow: int, by: float, measured: int) -> None:
    """Such as that of unlabelled batches, which every step takes beside the labelled ones. If in doubt, the first."""
    script = Script()

    class Slow(Numbers):
        def __getitem__(self, index: int) -> Tensor:
            self.clock.seconds += by
            return super().__getitem__(index)

    loaders = [DataLoader((Slow if n == slow else Numbers)(script.clock), 4) for n in range(2)]

    def epoch() -> None:
        for one, other in zip(*loaders, strict=True):
            script.step(one + other)

    script.measured(epoch)
    assert script.session.loader is not None
    assert script.session.loader.dataset == ("Slow" if measured == slow else "Numbers")
    beside = [window.evidence["beside_ms"] for window in script.session.windows if window.rung == "baseline"]
    its = 40.0 if measured == slow else 40.0 + 4000 * by
    assert beside and beside == pytest.approx([its] * len(beside))
    observed = [one.evidence["beside_ms"] for one in script.session.observed]
    assert observed and observed == pytest.approx([its] * len(observed))


class Failing:
    """Fails from its n-th call on, as a program whose descriptors or memory are used up."""

    def __init__(self, native: Callable[..., Any], fails_from: int) -> None:
        self._native, self.left = native, fails_from

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError(24, "Too many open files")
        return self._native(*args, **kwargs)

    def __get__(self, owner: Any, cls: type) -> Callable[..., Any]:
        return partial(self, owner)


@pytest.mark.parametrize(
    ("owner", "name", "fails_from"),
    [
        (loader_iterator.Track, "__init__", 0),
        (loader_iterator, "describe", 0),
        (module.Measurement, "promote", 1),
        (settling.Settler, "to", 0),
        (caches.BatchCache, "next", 3),
        (windows.Windows, "close", 1),
        (Session, "apply", 0),
        (Session, "apply", 5),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_the_script_trains_on_if_measuring_fails(
    owner: Any, name: str, fails_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epochs have all their batches, and it ends with the budget."""
    script, lengths = Script(), []
    monkeypatch.setattr(owner, name, Failing(getattr(owner, name), fails_from))
    loader = DataLoader(Numbers(script.clock), 4)

    def epoch() -> None:
        before = script.steps
        script.train(loader)
        lengths.append(script.steps - before)

    measurement = script.measured(epoch, budget=20.0)
    assert measurement.gave_up and measurement.over == "budget"
    assert set(lengths) == {50}
    assert 20.0 <= script.clock.seconds - 100.0 < 25.0
    said = [data["message"] for kind, data in script.sent if kind == "warning" and data["code"] == "unmeasurable"]
    assert "Too many open files" in said[0] and "trained on" in said[0]


def test_an_error_of_the_script_is_its_own() -> None:
    """Raised by its dataset, by an iterator that cannot be made, or by a handler of its signals at any moment."""

    class Broken(Numbers):
        def __getitem__(self, index: int) -> Tensor:
            raise LookupError("the script's")

    class Unmade(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            raise LookupError("the script's")

    for data in (Broken(Clock()), Unmade()):
        script = Script()
        with pytest.raises(LookupError, match="the script's"):
            script.measured(partial(script.train, DataLoader(data, 4)))
        assert script.session.warnings == []


def test_a_signal_that_comes_while_measuring_is_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    def alarmed(signum: int, frame: object) -> None:
        raise TimeoutError("the script's")

    def rings(*args: Any) -> None:
        signal.raise_signal(signal.SIGALRM)

    script, before = Script(), signal.signal(signal.SIGALRM, alarmed)
    monkeypatch.setattr(settling.Settler, "settle", rings)
    try:
        with pytest.raises(TimeoutError, match="the script's"):
            script.measured(partial(script.train, DataLoader(Numbers(script.clock), 4)))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert script.session.warnings == []


def test_a_later_pass_measures_the_loader_of_the_first_one() -> None:
    """Its windows belong to one loop, also where it waits as long for another loader."""

    def target(earlier: Loader | None = None) -> tuple[int | None, Loader | None]:
        script = Script()
        script.session.loader = earlier
        one, other = (DataLoader(Numbers(script.clock), 4) for _ in range(2))

        def epoch() -> None:
            for first, second in zip(one, other, strict=True):
                script.step(torch.cat([first, second]))

        return script.measured(epoch).summary().target, script.session.loader

    number, loader = target()
    assert number == 1 and loader is not None and loader.order == 0
    assert target(replace(loader, order=1))[0] == 2


class Args:
    level, seen = 0, float("nan")


class Edited(Numbers):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.mosaic, self.args, self.names, self.many = True, Args(), ["a", {"size": 3}], list(range(1000))
        self.args.level = 0
        self.chain = nn.Sequential(nn.Dropout(0.5))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_script_changes_in_its_dataset_between_epochs(workers: int) -> None:
    data = Edited(Clock(0.0))
    observer = Observer(Clock(0.0), workers, 1, None)  # type: ignore[arg-type]
    track = Track(DataLoader(data, num_workers=workers), 1, Place("train.py:1", 0), observer)
    track.look_at_dataset()
    data.added = 1  # type: ignore[attr-defined]
    data.many[3] = 0
    track.look_at_dataset()
    assert not track.edited
    data.mosaic, data.args.level, data.names[1]["size"] = False, 2, 4  # type: ignore[index]
    data.chain[0].p = 0.1
    track.look_at_dataset()
    changed = ["mosaic", "args.level", "names[1]['size']", "chain._modules['0'].p"]
    assert [*track.edited] == (changed if workers else [])


def test_objects_that_refuse_to_be_looked_at_hold_no_settings() -> None:
    class Refusing:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    class Unequal(type):
        def __eq__(cls, other: object) -> bool:
            raise RuntimeError("it compares with nothing")

        __hash__ = type.__hash__

    class Odd(metaclass=Unequal):
        pass

    assert settings([1, Refusing(), {"a": Refusing(), 2: None}, Odd(), {Odd(): 1}]) == {"[0]": 1, "[2][2]": None}
