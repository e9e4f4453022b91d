"""Looking for a frozen prefix beside a loop's own steps: what is found, and that the loop notices nothing."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import DataLoader, TensorDataset

import pipediag
from pipediag.analysis.intervals import Interval
from pipediag.errors import UsageError
from pipediag.ladder import frozen
from pipediag.ladder.caches import BatchCache
from pipediag.ladder.frozen import frozen_prefix
from pipediag.remedy.prefix import Costs, patches, trying
from pipediag.session import Prefix

CPU = torch.device("cpu")
CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Windows of a few steps. Afterwards no module is stood in for, and no mode is left."""
    monkeypatch.setattr(trying, "_SECONDS", 0.001)
    monkeypatch.setattr(trying, "_ROUNDS", 1)
    yield
    assert all(patch._users == 0 for patch in patches._patches.values())
    assert _get_current_dispatch_mode() is None


class Epochs:
    complete = False


class LoopSide:
    """A loop that gets batches; ``leaves`` are the numbers of the steps after which its epoch is over."""

    def __init__(self, leaves: tuple[int, ...] = ()) -> None:
        self.epochs = Epochs()
        self.handed: list[Any] = []
        self.leaves = leaves

    def hand(self, batch: Any) -> Generator[Any, None, bool]:
        self.handed.append(batch)
        yield batch
        return len(self.handed) - 1 not in self.leaves


class Task:
    """A training step on ``(images, labels)``. ``forward`` gives the loss; ``models`` are what it is made of."""

    def __init__(self, device: torch.device = CPU) -> None:
        torch.manual_seed(3)
        self.device = device
        self.losses: list[float] = []
        self.make()
        for model in self.models():
            model.to(device)
        self.optimizer = torch.optim.SGD(self.trained().parameters(), lr=0.1, momentum=0.9)

    def make(self) -> None:
        self.encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval().requires_grad_(False)
        self.decoder = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten())
        self.head = nn.Linear(4 * 36, 5)

    def models(self) -> list[nn.Module]:
        return [value for value in vars(self).values() if isinstance(value, nn.Module)]

    def trained(self) -> nn.Module:
        return nn.ModuleList(self.models())

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.encoder(images.float() / 255)
        return F.cross_entropy(self.head(self.decoder(features)), labels)

    def step(self, batch: Any) -> None:
        images, labels = batch
        self.optimizer.zero_grad()
        loss = self.forward(images.to(self.device), labels.to(self.device))
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def state(self) -> list[Any]:
        """All that training leaves: weights, statistics, gradients, modes, the optimizer and the random generators."""
        weights = [value for model in self.models() for value in model.state_dict().values()]
        grads = [weight.grad for model in self.models() for weight in model.parameters() if weight.grad is not None]
        momenta = [one["momentum_buffer"] for one in self.optimizer.state.values()]
        modes = torch.tensor([part.training for model in self.models() for part in model.modules()])
        numbers = [torch.tensor(self.losses), torch.get_rng_state(), torch.tensor(random.getstate()[1])]
        return [one.clone() for one in [*weights, *grads, *momenta, modes, *numbers]]


def batches(count: int = 3, device: torch.device = CPU) -> BatchCache:
    draws = torch.Generator().manual_seed(1)
    made = [
        (torch.randint(0, 256, (2, 3, 8, 8), generator=draws, dtype=torch.uint8).to(device), torch.tensor([n, 1]))
        for n in range(count)
    ]
    return BatchCache([(images, labels.to(device)) for images, labels in made])


def driven(turning: Generator[Any, None, Any], step: Callable[[Any], None]) -> Any:
    while True:
        try:
            batch = next(turning)
        except StopIteration as end:
            return end.value
        step(batch)


def looked_at(task: Task, loop_side: Any = None, step_ms: float = 1.0, seconds: float = 60.0) -> Prefix | None:
    turning = frozen_prefix(loop_side or LoopSide(), batches(device=task.device), task.device, step_ms, seconds)
    found: Prefix | None = driven(turning, task.step)
    return found


class Separate(Task):
    """The commonest form: the encoder and what is trained are called one after another."""


class Inside(Task):
    """The encoder is the first part of the model."""

    def make(self) -> None:
        super().make()
        self.model = nn.Sequential(*self.encoder, self.decoder, self.head)
        del self.encoder, self.decoder, self.head

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model(images.float() / 255), labels)


class ByKeyword(Task):
    """The whole model takes keywords and gives a mapping."""

    class Model(nn.Module):
        def __init__(self, encoder: nn.Module, rest: nn.Module) -> None:
            super().__init__()
            self.backbone, self.rest = encoder, rest

        def forward(self, *, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.rest(self.backbone(pixels))
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    def make(self) -> None:
        super().make()
        self.model = self.Model(self.encoder, nn.Sequential(self.decoder, self.head))
        del self.encoder, self.decoder, self.head

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.model(pixels=images / 255, labels=labels)["loss"]  # type: ignore[no-any-return]


class Glued(Task):
    """What lies between the encoder and the decoder is the loop's own."""

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.encoder(images / 255)
        return F.cross_entropy(self.head(self.decoder(features.relu() + 1)), labels)


class WithCriterion(Task):
    """A criterion is a module, too."""

    def make(self) -> None:
        super().make()
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.criterion(self.head(self.decoder(self.encoder(images / 255))), labels)  # type: ignore[no-any-return]


class UnderAutocast(Task):
    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            return super().forward(images, labels)


class UnderInferenceMode(Task):
    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.inference_mode():
            features = self.encoder(images / 255)
        return F.cross_entropy(self.head(self.decoder(features.clone())), labels)


class Shared(Task):
    """One module is called on two views of the batch."""

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        views = [self.encoder(images / 255), self.encoder(images.flip(3) / 255)]
        return sum(F.cross_entropy(self.head(self.decoder(view)), labels) for view in views)  # type: ignore[return-value]


FOUND: dict[type[Task], list[str]] = {
    Separate: ["self.encoder"],
    Inside: ["self.model.0", "self.model.1", "self.model.2"],
    ByKeyword: ["self.model.backbone"],
    Glued: ["self.encoder"],
    WithCriterion: ["self.encoder"],
    UnderAutocast: ["self.encoder"],
    UnderInferenceMode: ["self.encoder"],
    Shared: ["self.encoder"],
}


@pytest.mark.parametrize("form", FOUND, ids=lambda form: form.__name__)
class TestFound:
    def test_its_modules_and_what_they_take(self, form: type[Task]) -> None:
        found = looked_at(form())
        assert found is not None and found.modules == FOUND[form], found
        assert found.ms >= 0 and found.rest_ms >= 0
        assert (found.least, found.most, found.measured) == (1.0, 1.0, None)
        assert found.why_not == trying.NO_STREAMS

    def test_the_loop_trains_as_it_does_without(self, form: type[Task]) -> None:
        """Losses, weights, statistics, gradients, the optimizer and all draws, bit by bit."""
        watched, loop_side = form(), LoopSide()
        random.seed(0)
        found = looked_at(watched, loop_side)
        assert found is not None and found.modules
        seen = watched.state()
        plain = form()
        random.seed(0)
        for batch in loop_side.handed:
            plain.step(batch)
        assert len(plain.losses) > 4
        expected = plain.state()
        assert len(seen) == len(expected)
        for one, other in zip(seen, expected, strict=True):
            assert torch.equal(one, other)

    def test_autocast_is_as_it_was(self, form: type[Task]) -> None:
        before = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled(), torch.is_grad_enabled()
        looked_at(form())
        assert before == (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled(), torch.is_grad_enabled())


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("form", FOUND, ids=lambda form: form.__name__)
def test_on_a_gpu(form: type[Task], device: str) -> None:
    """Streams can gain something there, and the prediction says within which bounds."""
    found = looked_at(form(torch.device(device)))
    assert found is not None and found.modules == FOUND[form], found
    assert 0 < found.least <= found.most
    assert found.measured is None or found.measured > 0
    assert bool(found.why_not) == (found.measured is not None and found.measured <= 1.0)


class TestTried:
    """Where there are streams; here their times are made up: 8 ms of calls in a step of 10 ms."""

    COSTS = Costs(
        step=8.0, rest=5.0, prefix_host=0.5, rest_host=2.0, prefix_device=2.5, handover=0.1, streams=True
    )  # fmt: skip

    @pytest.fixture(autouse=True)
    def measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trying, "measure", lambda *args, **kwargs: self.COSTS)

    def compared(self, monkeypatch: pytest.MonkeyPatch, ratio: float) -> Prefix:
        monkeypatch.setattr(trying, "compare", lambda *args, **kwargs: Interval(ratio, ratio, ratio))
        found = looked_at(Task(), step_ms=10.0)
        assert found is not None
        return found

    def test_what_it_brings_to_the_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.compared(monkeypatch, 1.25)
        assert (found.ms, found.rest_ms, found.why_not) == (3.0, 7.0, "")
        assert found.measured == pytest.approx(10 / (10 - (8 - 8 / 1.25)))
        assert found.least < found.measured < found.most == pytest.approx(10 / 7)

    def test_it_does_not_pay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.compared(monkeypatch, 0.8)
        assert found.why_not == "it was tried, and steps became 0.83 times as fast"

    def test_no_stage_can_be_made_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuses(*args: Any, **kwargs: Any) -> None:
            raise UsageError("it gives tensors that require a gradient")

        monkeypatch.setattr(trying, "compare", refuses)
        found = looked_at(Task(), step_ms=10.0)
        assert found is not None and found.modules == ["self.encoder"]
        assert (found.measured, found.why_not) == (None, "")

    def test_there_is_no_time_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trying, "compare", lambda *args, **kwargs: pytest.fail("it was tried"))
        found = looked_at(Task(), step_ms=10.0, seconds=trying.seconds_needed(10.0, False))
        assert found is not None and found.measured is None and found.most > 1.0


class TestNothingToFind:
    def test_all_is_trained(self) -> None:
        task = Task()
        task.encoder.requires_grad_(True)
        loop_side = LoopSide()
        assert looked_at(task, loop_side) is None
        assert len(loop_side.handed) == 1  # the cheap check, and nothing else

    def test_nothing_is_trained(self) -> None:
        class Evaluating(Task):
            def step(self, batch: Any) -> None:
                self.encoder(batch[0] / 255)

        loop_side = LoopSide()
        assert looked_at(Evaluating(), loop_side) is None
        assert len(loop_side.handed) == 1

    def test_no_modules(self) -> None:
        loop_side = LoopSide()
        assert driven(frozen_prefix(loop_side, batches(), CPU, 1.0, 9.0), lambda batch: None) is None


def refused(task: Task, loop_side: Any = None, **more: Any) -> str:
    found = looked_at(task, loop_side, **more)
    assert found is not None
    assert (found.modules, found.least, found.most) == ([], 0.0, 0.0)
    assert found.why_not
    return found.why_not


class TestRefused:
    def test_random_draws_on_the_way(self) -> None:
        """What is mixed by a draw of the loop's would be drawn in another order a batch ahead."""

        class Mixing(Task):
            def forward(self, images: Tensor, labels: Tensor) -> Tensor:
                return super().forward(images * float(np.random.uniform(0.9, 1)), labels)

        assert "self.encoder needs what is not made of the batch alone" in refused(Mixing())

    def test_a_frozen_part_of_what_is_trained(self) -> None:
        """As in a perceptual loss: its weights are frozen, its input is not."""

        class Perceptual(Task):
            def make(self) -> None:
                super().make()
                self.encoder.requires_grad_(True)
                self.judge = nn.Conv2d(4, 2, 1).requires_grad_(False)

            def forward(self, images: Tensor, labels: Tensor) -> Tensor:
                return self.judge(self.encoder(images / 255)).square().mean()  # type: ignore[no-any-return]

        assert "self.judge needs what self.encoder makes" in refused(Perceptual())

    def test_what_is_detached_still_depends(self) -> None:
        class Detached(Task):
            def make(self) -> None:
                super().make()
                self.first = nn.Conv2d(3, 3, 1)

            def forward(self, images: Tensor, labels: Tensor) -> Tensor:
                with torch.no_grad():
                    glued = self.first(images / 255) + 0
                return super().forward(glued * 255, labels)

        assert "self.encoder needs what is not made of the batch alone" in refused(Detached())

    def test_what_the_step_before_has_left(self) -> None:
        class Behind(Task):
            before: Tensor | None = None

            def forward(self, images: Tensor, labels: Tensor) -> Tensor:
                kept, self.before = self.before, images / 255
                return super().forward(self.before if kept is None else kept, labels)

        assert "self.encoder needs what is not made of the batch alone" in refused(Behind())

    def test_a_teacher_that_follows(self) -> None:
        class Following(Task):
            def make(self) -> None:
                super().make()
                self.student = nn.Conv2d(3, 4, 3)

            def forward(self, images: Tensor, labels: Tensor) -> Tensor:
                loss = (self.student(images / 255) - self.encoder(images / 255)).square().mean()
                with torch.no_grad():
                    self.encoder[0].weight.lerp_(self.student.weight, 0.1)
                return loss

        assert "self.encoder.0.weight changes" in refused(Following())

    def test_train_mode(self) -> None:
        class Normalising(Task):
            def make(self) -> None:
                super().make()
                self.encoder = nn.Sequential(nn.BatchNorm2d(3), *self.encoder).requires_grad_(False)

        assert "call self.encoder.eval()" in refused(Normalising())

    def test_hooks_of_the_scripts(self) -> None:
        task, calls = Task(), []
        task.encoder[0].register_forward_hook(lambda *args: calls.append(1))
        loop_side = LoopSide()
        assert "a hook of the script's" in refused(task, loop_side)
        assert len(calls) == len(loop_side.handed)

    def test_steps_that_are_too_long(self) -> None:
        loop_side = LoopSide()
        assert "too long" in refused(Task(), loop_side, step_ms=5_000.0, seconds=10.0)
        assert len(loop_side.handed) == 1

    def test_several_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        assert "several processes" in refused(Task())

    def test_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(frozen, "why_unwatched", lambda: "compiled")
        assert refused(Task()) == "compiled"

    def test_another_thread(self) -> None:
        class Threaded(Task):
            def step(self, batch: Any) -> None:
                thread = threading.Thread(target=super().step, args=(batch,))
                thread.start()
                thread.join()

        assert "another thread" in refused(Threaded())

    def test_other_modules_from_step_to_step(self) -> None:
        class Alternating(Task):
            def forward(self, images: Tensor, labels: Tensor) -> Tensor:
                if len(self.losses) % 2:
                    self.head(torch.zeros(1, 4 * 36))
                return super().forward(images, labels)

        assert "other modules" in refused(Alternating())

    def test_whatever_goes_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*args: Any, **kwargs: Any) -> None:
            raise torch.cuda.OutOfMemoryError("no room")

        monkeypatch.setattr(trying, "measure", fails)
        task, loop_side = Task(), LoopSide()
        assert "no room" in refused(task, loop_side)
        plain = Task()
        for batch in loop_side.handed:
            plain.step(batch)
        assert plain.losses == task.losses


class TestEpochs:
    def test_a_step_at_the_end_of_an_epoch_is_watched_again(self) -> None:
        loop_side = LoopSide(leaves=(2,))
        found = looked_at(Task(), loop_side)
        assert found is not None and found.modules == ["self.encoder"]
        assert len(loop_side.handed) == 1 + 2 + 2 + 2

    def test_epochs_of_a_step(self) -> None:
        assert "from step to step" in refused(Task(), LoopSide(leaves=tuple(range(99))))

    def test_the_end_of_an_epoch_is_not_watched(self) -> None:
        """What the loop does between two epochs comes with the batch before."""
        loop_side = LoopSide()
        loop_side.epochs.complete = True
        looked_at(Task(), loop_side)
        assert len(loop_side.handed) == 1 + 2 * 2 + 2


def test_the_loop_may_end_at_any_step() -> None:
    for steps in range(1, 6):
        task = Task()
        turning = frozen_prefix(LoopSide(), batches(), CPU, 1.0, 60.0)
        for _ in range(steps):
            task.step(next(turning))
        turning.close()
        assert all(patch._users == 0 for patch in patches._patches.values())
        assert _get_current_dispatch_mode() is None


def test_cached_batches_stay_as_they_are() -> None:
    class InPlace(Task):
        def forward(self, images: Tensor, labels: Tensor) -> Tensor:
            return super().forward(images.float().div_(2), labels)

    cache = batches()
    before = copy.deepcopy(cache._batches)
    task = InPlace()
    driven(frozen_prefix(LoopSide(), cache, CPU, 1.0, 60.0), task.step)
    for one, other in zip(before, cache._batches, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_in_a_diagnosis() -> None:
    encoder, head = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)

    def step(batch: Any) -> None:
        with torch.no_grad():
            features = encoder(batch[0])
        optimizer.zero_grad()
        head(features).square().mean().backward()
        optimizer.step()

    loader = DataLoader(TensorDataset(torch.rand(4000, 8)), batch_size=4)
    found = pipediag.diagnose(loader, step, budget=3).session.prefix
    assert found is not None and found.modules == ["encoder"], found
