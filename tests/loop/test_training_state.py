"""Training steps are undone: everything that they change is restored in the same objects."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from pipediag.loop import training_state
from pipediag.loop.training_state import TrainingState

Step = Callable[[Any], float]


class Parts:
    """A training after some steps, with everything that a step changes: Adam and the scaler have a state."""

    def __init__(self, old: int = 3) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.scheduler: LRScheduler = StepLR(self.optimizer, 2)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=2)
        self.average = torch.zeros(8, 4)
        for _ in range(old):
            self.step((torch.randn(8, 4),))

    def step(self, batch: Any) -> float:
        loss = self.model(batch[0] + random.random() + numpy.random.rand()).pow(2).mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        with torch.no_grad():
            self.average.mul_(0.9).add_(self.model[0].weight, alpha=0.1)
        return loss.item()

    def tensors(self) -> list[torch.Tensor]:
        states = [part for state in self.optimizer.state.values() for part in state.values()]
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [*self.model.state_dict(keep_vars=True).values(), *states, *grads, self.average]

    def numbers(self) -> Any:
        """Return everything else that a step changes."""
        schedule = {
            k: v for k, v in vars(self.scheduler).items() if k not in ("optimizer", "_get_lr_called_within_step")
        }
        return str(([g["lr"] for g in self.optimizer.param_groups], schedule, self.scaler.state_dict()))


def make_loader(**more: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True, **more)


def losses(step: Step, loader: DataLoader[Any], number: int = 5) -> list[float]:
    return [step(batch) for batch, _ in zip(loader, range(number), strict=False)]


@pytest.mark.parametrize("old", [0, 3], ids=["new", "some-steps-old"])
@pytest.mark.parametrize("ends", [None, ValueError, KeyboardInterrupt])
def test_everything_is_restored(ends: type[BaseException] | None, old: int) -> None:
    parts, loader = Parts(old), make_loader(generator=torch.Generator().manual_seed(3))
    was, copies, numbers = parts.tensors(), [t.clone() for t in parts.tensors()], parts.numbers()
    state = TrainingState()
    try:
        with state.kept(parts.step, loader):
            parts.model.eval()
            parts.model.train()
            seen = losses(parts.step, loader)
            assert parts.numbers() != numbers
            parts.model[1].eval()
            parts.model[0].weight.requires_grad_(False)
            if ends is not None:
                raise ends
    except (ValueError, KeyboardInterrupt) as error:
        assert type(error) is ends
    now = parts.tensors()
    assert len(now) == len(was) and all(one is other for one, other in zip(now, was, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(now, copies, strict=True))
    assert parts.numbers() == numbers
    assert all(module.training for module in parts.model.modules())
    assert all(p.requires_grad and (p.grad is None) == (old == 0) for p in parts.model.parameters())
    assert not state.lost
    assert losses(parts.step, loader) == seen, "the training does not continue as it would have"


MODEL = nn.Linear(4, 1)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
    optimizer.zero_grad()
    loss = model(batch[0]).pow(2).mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


class Slotted:
    __slots__ = ("model", "nothing", "optimizer")

    def __init__(self) -> None:
        self.model, self.optimizer = MODEL, OPTIMIZER

    def __call__(self, batch: Any) -> float:
        return train(self.model, self.optimizer, batch)


class UsesGlobals:
    def step(self, batch: Any) -> float:
        return self.inner(batch)

    def inner(self, batch: Any) -> float:
        return train(MODEL, OPTIMIZER, batch)


def of_a_generator() -> Step:
    """Its local variables cannot be seen from outside: modules are saved when they first run."""

    def run() -> Iterator[Any]:
        model, optimizer, loss = MODEL, OPTIMIZER, 0.0
        while True:
            loss = train(model, optimizer, (yield loss))

    running: Any = run()
    next(running)
    return running.send  # type: ignore[no-any-return]


def of_a_container() -> Step:
    held = {"parts": [(MODEL, OPTIMIZER)]}
    return lambda batch: train(*held["parts"][0], batch)


def calling(inner: Any) -> Step:
    return lambda batch: inner(batch=batch)  # type: ignore[no-any-return]


WAYS: dict[str, Step] = {
    "globals": lambda batch: train(MODEL, OPTIMIZER, batch),
    "a partial": partial(train, MODEL, OPTIMIZER),
    "keywords": calling(partial(train, model=MODEL, optimizer=OPTIMIZER)),
    "defaults": lambda batch, model=MODEL, optimizer=OPTIMIZER: train(model, optimizer, batch),  # type: ignore[misc]
    "a container": of_a_container(),
    "another function": torch.enable_grad()(calling(partial(train, MODEL, optimizer=OPTIMIZER))),
    "slots": Slotted(),
    "a method that names globals": UsesGlobals().step,
    "a generator": of_a_generator(),
}


@pytest.mark.parametrize("step", WAYS.values(), ids=WAYS)
def test_however_a_step_reaches_its_model(step: Step) -> None:
    loader = make_loader()
    before = [p.clone() for p in MODEL.parameters()]
    state = TrainingState()
    with state.kept(step, loader):
        losses(step, loader)
        assert not torch.equal(MODEL.weight, before[0])
    assert all(map(torch.equal, MODEL.parameters(), before))
    assert not OPTIMIZER.state and all(p.grad is None for p in MODEL.parameters())
    assert state.holders == ["the model", "SGD"]


def test_a_scheduler_that_a_step_cannot_reach_is_found_by_its_optimizer() -> None:
    parts = Parts(0)
    hidden = (scheduler for scheduler in [ReduceLROnPlateau(parts.optimizer, patience=0)])
    step, loader = parts.step, make_loader()
    with TrainingState().kept(step, loader):
        found = next(hidden)
        for loss in (1.0, 2.0, 3.0):
            found.step(loss)
        assert found.num_bad_epochs or found.last_epoch
    assert found.last_epoch == 0 and found.best == float("inf")


def test_buffers_of_a_model_without_an_optimizer() -> None:
    norm, loader = nn.BatchNorm1d(4), make_loader()
    with TrainingState().kept(lambda batch: norm(batch[0]), loader):
        losses(lambda batch: float(norm(batch[0]).detach().sum()), loader)
        assert norm.num_batches_tracked == 5
    assert norm.num_batches_tracked == 0 and torch.equal(norm.running_mean, torch.zeros(4))


def test_gradients_keep_their_values() -> None:
    model = nn.Linear(4, 1)
    model(torch.ones(2, 4)).sum().backward()
    gradient, values = model.weight.grad, model.weight.grad.clone()
    with TrainingState().kept(lambda batch: model(batch), make_loader()):
        model(torch.ones(2, 4)).sum().backward()
        model.weight.grad = None
    assert model.weight.grad is gradient and torch.equal(gradient, values)


def test_a_tensor_that_is_replaced_by_data() -> None:
    model = nn.Linear(4, 1)
    before = model.weight.clone()
    with TrainingState().kept(lambda batch: model(batch), make_loader()):
        model.half()
        model.extra = nn.Linear(1, 1)
    assert model.weight.dtype == torch.float32 and torch.equal(model.weight, before)
    assert not hasattr(model, "extra")


def test_the_users_generators_draw_the_same_again() -> None:
    own = [random.Random(1), numpy.random.default_rng(1), numpy.random.RandomState(1), torch.Generator()]

    def draw(batch: Any) -> list[float]:
        one, two, three, four = own
        return [one.random(), float(two.random()), float(three.rand()), float(torch.rand(1, generator=four))]

    with TrainingState().kept(draw, make_loader()):
        first = draw(None)
    assert draw(None) == first


def test_the_order_of_a_sampler_with_its_own_generator() -> None:
    data = TensorDataset(torch.arange(16.0))
    loader = DataLoader(data, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(1)))
    with TrainingState().kept(print, loader):
        first = [float(x) for (x,) in loader]
    assert [float(x) for (x,) in loader] == first


def test_lazy_modules_lose_their_values() -> None:
    """Afterwards they accept another size, and draw the same first values."""
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[2].weight.clone()
    parameters = list(model.parameters())

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        model(batch).sum().backward()
        first = model[0].weight.detach().clone()
        optimizer.step()
        return first

    state = TrainingState()
    with state.kept(step, make_loader()):
        drawn = step(torch.ones(2, 4))
        step(torch.ones(2, 4))
    assert state.lost == [] and torch.equal(model[2].weight, before)
    assert type(model[0]) is nn.LazyLinear and type(model[1]) is nn.LazyBatchNorm1d
    assert model[0].has_uninitialized_params() and model[1].has_uninitialized_params()
    assert repr(model[1].running_mean) == "<UninitializedBuffer>" and model[1].num_features == 0
    assert list(map(id, model.parameters())) == list(map(id, parameters))
    assert torch.equal(step(torch.ones(2, 4)), drawn)
    assert type(model[0]) is nn.Linear and len(model[0]._forward_pre_hooks) == 0


def test_lazy_modules_with_values_keep_them() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    model(torch.ones(2, 4))
    before = model[0].weight.clone()
    state = TrainingState()
    with state.kept(lambda batch: model(batch), make_loader()), torch.no_grad():
        model[0].weight.zero_()
    assert state.lost == [] and torch.equal(model[0].weight, before)


def test_a_lazy_module_seen_first_in_a_step() -> None:
    hidden = [nn.LazyLinear(3)]
    state = TrainingState()
    with state.kept(print, make_loader()):
        hidden[0](torch.ones(2, 4))
    assert hidden[0].has_uninitialized_params() and hidden[0](torch.ones(2, 5)).shape == (2, 3)


def test_a_large_tensor_is_only_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_state, "_LARGE", 8)
    data, sums = torch.zeros(100), torch.zeros(100)
    state = TrainingState()
    with state.kept(lambda batch: sums.add_(data), make_loader()):
        sums.add_(data)
    assert state.lost == ["a large tensor of step_fn"] and not state._tensors


def test_modules_made_in_a_step_are_not_kept_alive() -> None:
    state = TrainingState()
    with state.kept(lambda batch: None, make_loader()):
        held = len(state._seen)
        for _ in range(10):
            nn.MSELoss()(torch.ones(1), torch.ones(1))
        assert len(state._seen) == held
