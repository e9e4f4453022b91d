"""Measuring what a split costs and brings, on the device, with one batch that lies there already."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from ...analysis.estimate import UNKNOWN, paired_ratio
from ...analysis.intervals import Interval
from ...measure.clock import Clock, SystemClock
from ...measure.device import Device
from ...usercode import tree
from .gain import Costs
from .split import Split
from .weights import NotFrozen

#: One training step: given the batch, and what runs the forward on it in place of the model.
Step = Callable[[Any, Callable[[Any], Any]], Any]
#: Makes a pipeline of a loader: gives for each batch what the split's stage makes of it, computed ahead.
Pipeline = Callable[[Iterable[Any]], Iterable[Any]]

#: Runs that are timed one by one, as a rule.
_SINGLE = 9
#: Cycles of a GPU in a millisecond, no less.
_CYCLES = 2_500_000


def measure(
    split: Split,
    batch: Any,
    step: Step,
    *,
    rounds: int = 5,
    seconds: float = 0.2,
    singles: int = _SINGLE,
    clock: Clock | None = None,
) -> Costs:
    """Time a step and its parts.

    The steps are real ones and train the model: give it a copy, or save what should be kept.

        def step(batch, forward):
            optimizer.zero_grad()
            criterion(forward(batch), batch[1]).backward()
            optimizer.step()

    Args:
        split: of the forward that ``step`` runs.
        batch: on the device.
        step: one step of the loop, that uses ``forward`` in place of the model.
        rounds: windows of which the median is taken.
        seconds: about how long a window is.
        singles: runs that are timed one by one, of which the median is taken too.
        clock: for tests.

    Raises:
        NotFrozen: the steps change a weight of the prefix.
    """
    bench = _Bench(_device_of(batch, split), clock or SystemClock(), rounds, seconds, singles)
    features = split.prefix(batch)
    whole = partial(step, batch, split.forward)
    rest = partial(step, batch, lambda one: split.rest(one, features))
    prefix = partial(split.prefix, batch)
    whole()
    _check(split)
    costs = Costs(
        step=bench.wall(whole),
        rest=bench.wall(rest),
        prefix_host=bench.host(prefix),
        rest_host=bench.host(rest),
        prefix_device=bench.busy(prefix),
        handover=bench.handover(features),
        streams=bench.streams,
    )
    _check(split)
    return costs


def compare(
    split: Split,
    batch: Any,
    step: Step,
    *,
    pipeline: Pipeline | None = None,
    rounds: int = 7,
    seconds: float = 0.4,
    clock: Clock | None = None,
) -> Interval:
    """The throughput with the split run ahead by a pipeline, in parts of that without; windows take turns.

    Args:
        pipeline: for a loader of batches, an iterable that gives what ``split.stage`` makes of each. By default a
            :class:`~pipediag.remedy.streams.pipeline.StagePipeline` on the batch's device.
        rounds: pairs of windows.

    The other arguments and what is raised are those of :func:`measure`.
    """
    device = _device_of(batch, split)
    bench = _Bench(device, clock or SystemClock(), rounds, seconds)
    source = _Repeated(batch)
    piped = (pipeline or partial(_stage_pipeline, split, device))(source)

    def serially(steps: int) -> None:
        for _ in range(steps):
            step(batch, split.forward)

    def ahead(steps: int) -> None:
        source.length = steps
        for one, features in piped:
            step(one, partial(_rest_with, split, features))

    serially(2)
    ahead(4)  # a pipeline may spend its first batches on captures
    _check(split)
    steps = bench.steps(partial(step, batch, split.forward))
    pairs = [(bench.window(serially, steps), bench.window(ahead, steps)) for _ in range(rounds)]
    _check(split)
    return paired_ratio([slow for slow, _ in pairs], [fast for _, fast in pairs], UNKNOWN)


def _rest_with(split: Split, features: Any, batch: Any) -> Any:
    return split.rest(batch, features)


def _stage_pipeline(split: Split, device: torch.device, loader: Iterable[Any]) -> Iterable[Any]:
    from ..streams.pipeline import StagePipeline

    return StagePipeline(loader, [split.stage], device)


def _check(split: Split) -> None:
    changed = split.changed()
    if changed is not None:
        raise NotFrozen(f"{changed} changes while the loop trains, so what reads it must not run ahead of the loop")


def _device_of(batch: Any, split: Split) -> torch.device:
    """Where the work is done."""
    weights = (weight for module in split.frozen for weight in module.parameters())
    found = [tensor.device for tensor in (*tree.tensors(batch), *weights)]
    return next((device for device in found if device.type != "cpu"), torch.device("cpu"))


class _Repeated:
    """A loader that gives one batch again and again."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.length = 0

    def __iter__(self) -> Iterator[Any]:
        return (self._batch for _ in range(self.length))

    def __len__(self) -> int:
        return self.length


class _Bench:
    """Times things; the results are milliseconds.

    Attributes:
        streams: whether the device works on several streams at once.
    """

    def __init__(self, device: torch.device, clock: Clock, rounds: int, seconds: float, singles: int = _SINGLE) -> None:
        self.streams = device.type == "cuda"
        self._torch_device = device
        self._device = Device(device)
        self._clock = clock
        self._rounds = rounds
        self._seconds = seconds
        self._singles = singles

    def wall(self, run: Callable[[], Any]) -> float:
        """From run to run, with many runs on their way."""

        def repeatedly(times: int) -> None:
            for _ in range(times):
                run()

        steps = self.steps(run)
        return statistics.median(self.window(repeatedly, steps) for _ in range(self._rounds)) / steps

    def window(self, run: Callable[[int], Any], steps: int) -> float:
        """All of ``steps`` runs."""
        self._device.synchronize()
        begun = self._clock.now()
        run(steps)
        self._device.synchronize()
        return 1000 * (self._clock.now() - begun)

    def steps(self, run: Callable[[], Any]) -> int:
        """How many runs make up a window."""
        once = self.window(lambda _: run(), 1) / 1000
        return max(1, round(self._seconds / once)) if once > 0 else 1

    def host(self, run: Callable[[], Any]) -> float:
        """Until one run has been launched on an idle device."""
        return statistics.median(self._launched(run) for _ in range(self._singles))

    def _launched(self, run: Callable[[], Any]) -> float:
        self._device.synchronize()
        begun = self._clock.now()
        run()
        return 1000 * (self._clock.now() - begun)

    def busy(self, run: Callable[[], Any]) -> float:
        """What the device needs for one run if all of it has been launched before it begins.

        On the GPU kernels queue up behind one that only waits, so that the events around them see no launches. Where
        the run waits for the device, or launches more than fits into the queue, some of that is counted in.
        """
        if not self.streams:
            return self.host(run)
        launching = self.host(run)
        with torch.cuda.device(self._torch_device):
            return statistics.median(self._worked(run, launching) for _ in range(self._singles))

    def _worked(self, run: Callable[[], Any], launching: float) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._device.synchronize()
        torch.cuda._sleep(int(_CYCLES * (2 * launching + 1)))
        begin.record()
        run()
        end.record()
        self._device.synchronize()
        return float(begin.elapsed_time(end))

    def handover(self, features: Any) -> float:
        """Passing ``features`` from one stream to another: what the host does for it."""
        if not self.streams:
            return 0.0
        side, current = torch.cuda.Stream(self._torch_device), torch.cuda.current_stream(self._torch_device)
        tensors = [tensor for tensor in tree.tensors(features) if tensor.is_cuda]

        def once() -> None:
            side.wait_stream(current)
            with torch.cuda.stream(side):
                event = side.record_event()
            current.wait_event(event)
            for tensor in tensors:
                tensor.record_stream(side)

        return self.host(once)
