"""Record a loop's steps with torch's profiler: what is reported, and that everything is undone."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import profiler as autograd_profiler
from torch.nn import functional as F
from torch.nn.modules import module as modules

from pipediag.ladder.caches import BatchCache
from pipediag.ladder.probes import profiling
from pipediag.ladder.probes.profiling import STEPS, WARM_UP, Labels, path_in, profile_steps, why_unrecorded
from pipediag.measure.device import Device
from pipediag.session import Profile
from pipediag.usercode.holders import call_site

from .cached_loop import CachedLoop, driven

CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def nothing_left_on() -> Iterator[None]:
    gc.collect()  # profilers of earlier tests
    yield
    assert not autograd_profiler._is_profiler_enabled
    assert not modules._global_forward_hooks and not modules._global_forward_hooks_always_called


class Loop(CachedLoop):
    """Loop and clock in one: every step takes ten milliseconds."""

    def __init__(self, leaves: tuple[int, ...] = ()) -> None:
        super().__init__(leaves=leaves)
        self.steps = 0
        self.clock = self

    def now(self) -> float:
        return 0.01 * self.steps

    def hand(self, batch: Any) -> Generator[Any, None, bool]:
        back = yield from super().hand(batch)
        self.steps += 1
        return back


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Takes milliseconds, so that it outweighs any hiccup in the head.
        self.encoder = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
        self.head = nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images).mean((2, 3)))  # type: ignore[no-any-return]


def trainer(device: torch.device) -> Callable[[Tensor], None]:
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(images: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long, device=device)).backward()
        optimizer.step()

    return step


def turning(loop: Loop, device: torch.device, file: Path, step_ms: float = 20.0) -> Generator[Any, None, Profile]:
    loop.batches, loop.device = BatchCache([torch.rand(4, 3, 32, 32, device=device)]), Device(device)
    return profile_steps(loop, step_ms, str(file))  # type: ignore[arg-type]


def profiled(loop: Loop, device: torch.device, file: Path, step: Callable[[Any], None] | None = None) -> Profile:
    found: Profile = driven(turning(loop, device, file), step or trainer(device))
    return found


class TestRecorded:
    def test_a_trace_for_a_viewer(self, device: torch.device, tmp_path: Path) -> None:
        loop = Loop()
        found = profiled(loop, device, tmp_path / "trace.json")
        assert loop.steps == WARM_UP + STEPS
        assert (found.trace, found.why_not, found.steps) == (str(tmp_path / "trace.json"), "", STEPS)
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        names = {event.get("name") for event in events}
        assert {"aten::convolution", "module: model > encoder > 2"} <= names
        assert sum(str(name).startswith("ProfilerStep#") for name in names) == STEPS

    def test_operators_and_their_shares(self, device: torch.device, tmp_path: Path) -> None:
        found = profiled(Loop(), device, tmp_path / "trace.json")
        operators = {share.name: share for share in found.operators}
        assert operators["convolution_backward"].calls == 2.0
        assert all(share.ms > 0 for share in found.operators)
        assert [share.ms for share in found.operators] == sorted((one.ms for one in found.operators), reverse=True)
        assert found.busy_ms >= sum(share.ms for share in found.operators) * 0.999
        assert found.step_ms == pytest.approx(10.0 if device.type == "cpu" else 20.0)
        assert bool(found.kernels) == (device.type != "cpu")

    def test_modules_with_their_backward_pass(self, device: torch.device, tmp_path: Path) -> None:
        found = {share.name: share for share in profiled(Loop(), device, tmp_path / "trace.json").modules}
        assert found["model.encoder.0"].calls == found["model.head"].calls == 1.0
        assert "model.encoder" not in found  # it is represented by its parts

    def test_a_backward_step_counts_for_its_module(self, device: torch.device, tmp_path: Path) -> None:
        """A forward pass of microseconds with a backward pass of tens of milliseconds, which outweighs any hiccup."""
        weight = torch.ones(1024, 1024, device=device)

        class Once(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad + sum((weight @ weight).sum() for _ in range(4)) * 0.0

        class Heavy(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return Once.apply(x)  # type: ignore[no-any-return]

        heavy, light = Heavy(), nn.Linear(64, 64).to(device)

        def step(images: Tensor) -> None:
            heavy(light(torch.ones(64, 64, device=device))).sum().backward()

        found = {share.name: share.ms for share in profiled(Loop(), device, tmp_path / "trace.json", step).modules}
        assert found["heavy"] > found["light"]

    def test_compiled_code_has_no_modules(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(profiling, "why_unwatched", lambda: "compiled")
        found = profiled(Loop(), torch.device("cpu"), tmp_path / "trace.json")
        assert found.operators and not found.modules


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("leaves", "steps"),
    [
        ((WARM_UP + 2,), 2 * (WARM_UP + STEPS)),  # in the middle of the recording
        ((1,), WARM_UP + STEPS),
        (tuple(range(1000)), 3 * (WARM_UP + STEPS)),
    ],
)
def test_epochs_that_end_meanwhile(tmp_path: Path, leaves: tuple[int, ...], steps: int) -> None:
    loop = Loop(leaves)
    assert profiled(loop, CPU, tmp_path / "trace.json").steps == STEPS
    assert loop.steps == steps


def test_work_between_epochs_is_not_recorded(tmp_path: Path) -> None:
    loop = Loop()
    loop.epochs.complete = True
    profiled(loop, CPU, tmp_path / "trace.json")
    assert loop.steps == 1 + WARM_UP + STEPS


class TestNotRecorded:
    def test_an_active_profiler_of_the_script(self, tmp_path: Path) -> None:
        loop = Loop()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
            found = profiled(loop, CPU, tmp_path / "trace.json")
            torch.ones(3).sum()
        assert "uses torch's profiler itself" in found.why_not
        assert loop.steps == 0 and not (tmp_path / "trace.json").exists()
        assert "aten::sum" in {event.key for event in own.key_averages()}

    def test_the_autograd_profiler(self) -> None:
        with torch.autograd.profiler.profile():
            assert why_unrecorded()
        assert why_unrecorded() == ""

    def test_a_scheduled_profiler_between_its_cycles(self) -> None:
        """It is inactive now, but would fail when its next cycle begins."""
        own = torch.profiler.profile(schedule=torch.profiler.schedule(wait=9, warmup=1, active=1))
        assert why_unrecorded()
        del own
        gc.collect()
        assert why_unrecorded() == ""

    def test_our_own_profilers_do_not_count(self, tmp_path: Path) -> None:
        gc.disable()
        try:
            assert profiled(Loop(), CPU, tmp_path / "one.json").why_not == ""
            assert profiled(Loop(), CPU, tmp_path / "two.json").why_not == ""
        finally:
            gc.enable()

    def test_a_file_that_can_no_longer_be_written(self, tmp_path: Path) -> None:
        found = profiled(Loop(), CPU, tmp_path / "gone" / "trace.json")
        assert "could not be written" in found.why_not and found.trace == ""

    @pytest.mark.parametrize("steps", [1, WARM_UP, WARM_UP + 2])
    def test_a_loop_that_ends_meanwhile(self, steps: int, tmp_path: Path) -> None:
        step, going = trainer(CPU), turning(Loop(), CPU, tmp_path / "trace.json")
        for _ in range(steps):
            step(next(going))
        assert autograd_profiler._is_profiler_enabled == (steps > WARM_UP)
        going.close()
        assert not autograd_profiler._is_profiler_enabled
        assert not (tmp_path / "trace.json").exists()

    def test_an_error_in_the_loop(self, tmp_path: Path) -> None:
        """The loop raises it and then drops its iterator; labels of failed calls are closed."""
        model = nn.Sequential(nn.Linear(2, 2))
        labels = Labels()
        with labels.on(), pytest.raises(RuntimeError):
            model(torch.ones(3))
        assert labels._open.stack == []


class TestNames:
    def test_a_variable(self) -> None:
        net = nn.Linear(1, 1)
        name, where = call_site(net)
        assert name == "net"
        assert where.rpartition(":")[0].endswith("test_profiling.py")
        assert call_site([nn.Linear(1, 1)][0])[0] == "Linear", "it has no name"

    @pytest.mark.parametrize("base", [object, nn.Module])
    def test_an_attribute(self, base: Any) -> None:
        class Trainer(base):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Linear(1, 1)

            def name(self) -> str:
                return call_site(self.net)[0]

        assert Trainer().name() == "self.net"

    @pytest.mark.parametrize("label, path", [("module: net > 0 > bn", ("net", "0", "bn")), ("aten::mm", ())])
    def test_labels(self, label: str, path: tuple[str, ...]) -> None:
        assert path_in(label) == path

    def test_calls_are_counted_only_on_request(self) -> None:
        net, labels = nn.Sequential(nn.ReLU(), nn.ReLU()), Labels()
        with labels.on():
            net(torch.ones(1))
            labels.counting = True
            net(torch.ones(1))
        assert labels.calls == {("net",): 1, ("net", "0"): 1, ("net", "1"): 1}
