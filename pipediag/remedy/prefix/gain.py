"""What running the prefix ahead can bring: arithmetic on measured times. All times are milliseconds per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...analysis.intervals import Interval

#: What the host does to run a captured prefix: copy the batch in, launch the graph, copy the result out.
REPLAY_MS = 0.05

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Costs:
    """What was measured of a training step and its parts, with a batch that lies on the device.

    Attributes:
        step: of the whole step, from step to step.
        rest: of the step without the prefix, its results being at hand, from step to step.
        prefix_host, rest_host: until the host has launched the prefix, and the rest.
        prefix_device: that the device works on the prefix, without waiting for launches.
        handover: for the host to pass results from stream to stream.
        streams: whether the device can work on both at once.
    """

    step: float
    rest: float
    prefix_host: float
    rest_host: float
    prefix_device: float
    handover: float
    streams: bool


@dataclass(frozen=True)
class Prediction:
    """The least and the most that the step can become faster, as factors of the throughput.

    Attributes:
        as_is: with the prefix launched kernel by kernel on a stream of its own.
        captured: with the prefix in a CUDA graph.
    """

    as_is: Bounds
    captured: Bounds


def predict(costs: Costs) -> Prediction:
    """The bounds of what a pipeline of prefix and rest can reach.

    At best the device works on the next prefix while it would otherwise idle or leave units unused. The step then takes
    as long as the slowest of: the rest by itself (its launches, its kernels and its waits); the launches of both, since
    one host thread makes them; the kernels of the prefix. At worst nothing overlaps, since either part fills the device
    by itself, and the hand-over comes on top: the step as it was. A captured prefix needs no launches, so at worst it
    runs for as long as its kernels do, before or after the rest.

    Both bounds leave aside that kernels which run at the same time share caches and bandwidth.
    """
    if not costs.streams:
        return Prediction((1.0, 1.0), (1.0, 1.0))
    as_is = max(costs.rest, costs.prefix_host + costs.rest_host, costs.prefix_device)
    captured = max(costs.rest, REPLAY_MS + costs.rest_host, costs.prefix_device)
    in_turn = min(costs.step, costs.rest + max(REPLAY_MS, costs.prefix_device))
    return Prediction(
        _bounds(costs.step, as_is, costs.step + costs.handover),
        _bounds(costs.step, captured, in_turn + costs.handover),
    )


def _bounds(step: float, best: float, worst: float) -> Bounds:
    return step / worst, step / min(best, worst)


@dataclass(frozen=True)
class Proposal:
    """A split to be made in the training loop.

    Attributes:
        names: the modules that run ahead.
        prefix_ms, rest_ms: what the two parts take of a step: the prefix by what it adds to the rest.
        predicted: the bounds of the speedup.
        measured: the speedup as it was measured; None if it was not.
        how: the code to write.
    """

    names: tuple[str, ...]
    prefix_ms: float
    rest_ms: float
    predicted: Bounds
    measured: Interval | None
    how: str

    @property
    def pays(self) -> bool | None:
        """Whether it is faster beyond doubt; None where only a measurement can tell."""
        if self.measured is not None:
            return self.measured.low > 1.0
        return None if self.predicted[1] > 1.0 else False

    def __str__(self) -> str:
        names = ", ".join(self.names)
        low, high = self.predicted
        told = [
            f"{names}: {self.prefix_ms:.2f} ms of each step need nothing of what the loop learns;"
            f" the rest takes {self.rest_ms:.2f} ms.",
            f"Predicted speedup of running it one batch ahead: {low:.2f}x to {high:.2f}x.",
        ]
        if self.measured is not None:
            gain = self.measured
            told.append(f"Measured: {gain.value:.2f}x ({gain.low:.2f}x to {gain.high:.2f}x).")
        if self.pays is False:
            told.append("It does not pay: leave the loop as it is.")
            return " ".join(told)
        return "\n".join([" ".join(told), self.how])


class Found(Protocol):
    """What is told of a split; see :class:`pipediag.remedy.prefix.Split`."""

    names: tuple[str, ...]
    capturable: bool


def propose(split: Found, costs: Costs, measured: Interval | None = None, model: str = "model") -> Proposal:
    """What to tell the user.

    Args:
        split: that was found.
        costs: as measured.
        measured: the ratio of the throughputs with and without the split.
        model: what the loop calls now, as code.
    """
    prediction = predict(costs)
    return Proposal(
        names=split.names,
        prefix_ms=max(0.0, costs.step - costs.rest),
        rest_ms=costs.rest,
        predicted=prediction.captured if split.capturable else prediction.as_is,
        measured=measured,
        how=_how(model),
    )


def _how(model: str) -> str:
    return (
        f"split = find_prefix({model}, batch)  # with one batch of the loop's, on the device\n"
        "for batch, features in StagePipeline(loader, [split.stage], device):\n"
        f"    output = split.rest(batch, features)  # in place of {model}(batch)"
    )
