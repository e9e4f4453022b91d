"""Holding a split against the forward that it was made of: results, gradients, state and random draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import PipediagError
from ...usercode import randomness, tree
from .rewinding import generator_state, rewound
from .structure import tensors_in

#: Noise that is seen once may be so much larger another time.
_MARGIN = 4
#: What the order of additions may change, where it differs from run to run: of sums in single precision, and when these
#: are rounded to a shorter type, in units of its precision.
_ROUNDING, _ROUNDED = 16 * torch.finfo(torch.float32).eps, 2
#: A forward that differs from itself by more than this cannot be compared with anything.
_MOST_NOISE = 0.01


class SplitDiffers(PipediagError):
    """A split does not give what the forward gives."""


@dataclass(frozen=True)
class Agreement:
    """The largest differences between a split and its forward, each relative to the largest value of its tensor.

    Attributes:
        outputs: of what the forward returns.
        gradients: of those of all trained parameters, for a loss that weighs every element of the output differently.
        state: of what the forward writes into, running statistics for example.
        noise: of all these, between the forward and itself.
    """

    outputs: float
    gradients: float
    state: float
    noise: float

    @property
    def exact(self) -> bool:
        return self.outputs == self.gradients == self.state == 0.0


@dataclass(frozen=True)
class Surroundings:
    """What a forward may change, and has to be put back.

    Attributes:
        roots: the modules.
        written: tensors that it writes into.
        devices: where the work is done.
        generators: that the forward draws from, besides those of the process.
    """

    roots: Sequence[nn.Module]
    written: Sequence[Tensor]
    devices: Sequence[torch.device]
    generators: Sequence[torch.Generator]

    def trained(self) -> list[Tensor]:
        parameters = (weight for root in self.roots for weight in root.parameters() if weight.requires_grad)
        return list(dict.fromkeys(parameters))


Steps = Callable[[list[Any]], Iterator[Any]]


def agreement(forward: Steps, split: Steps, batches: Sequence[Any], around: Surroundings) -> Agreement:
    """Run a few steps both ways, without changing anything.

    Args:
        forward: gives the results for some batches, as the loop has them without the split.
        split: gives them by way of it, every prefix before any rest.
        batches: one for each step; several, so that what is kept from one to the next shows.
        around: what is put back, and whose gradients are compared.

    Raises:
        SplitDiffers: they differ by more than the forward does from itself, or that is too much to tell. On the CPU it
            is nothing, as a rule; on other devices rounding is allowed for, too.
    """
    plain, again, by_way = (_outcome(way, batches, around) for way in (forward, forward, split))
    if by_way.draws != plain.draws:
        raise SplitDiffers("the split draws other random numbers than the forward: leave the model as it is")
    noise = _differences(plain, again)
    if max(noise.values()) > _MOST_NOISE:
        raise SplitDiffers("the forward gives something else each time it is run: it keeps state that was not found")
    found = _differences(plain, by_way)
    on_cpu = all(device.type == "cpu" for device in around.devices)
    slack = 0.0 if on_cpu else max(_ROUNDING, _ROUNDED * plain.precision())
    for what, difference in found.items():
        if difference > max(_MARGIN * noise[what], slack):
            raise SplitDiffers(
                f"the {what} of the split differ from those of the forward by {difference:.3g} of the largest value:"
                " leave the model as it is"
            )
    return Agreement(found["outputs"], found["gradients"], found["state"], max(noise.values()))


@dataclass
class _Outcome:
    """What some steps gave."""

    outputs: list[Tensor]
    gradients: list[Tensor | None]
    state: list[Tensor]
    draws: list[bytes]

    def precision(self) -> float:
        dtypes = {tensor.dtype for tensor in [*self.outputs, *self.gradients] if tensor is not None}
        return max((torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point), default=0.0)


def _outcome(way: Steps, batches: Sequence[Any], around: Surroundings) -> _Outcome:
    outcome = _Outcome([], [], [], [])
    trained = around.trained()
    with rewound(around.devices) as kept, torch.enable_grad():
        for root in around.roots:
            kept.add(root)
        for tensor in around.written:
            kept.before_write(tensor)
        for generator in around.generators:
            kept.before_draw(generator)
        for result in way([tree.clone(batch) for batch in batches]):
            tensors = list({id(one): one for one in [*tree.tensors(result), *tensors_in(result)]}.values())
            outcome.outputs += [tensor.detach().clone() for tensor in tensors]
            outcome.gradients += _gradients(tensors, trained)
        outcome.state = [tensor.detach().clone() for tensor in around.written]
        outcome.draws = _positions(around)
    return outcome


def _gradients(outputs: list[Tensor], trained: list[Tensor]) -> list[Tensor | None]:
    parts = [_weighed(output) for output in outputs if output.requires_grad]
    if not parts or not trained:
        return []
    loss = torch.stack([part.to(parts[0].device) for part in parts]).sum()
    return list(torch.autograd.grad(loss, trained, allow_unused=True))


def _weighed(output: Tensor) -> Tensor:
    """A number to which every element contributes by a weight of its own."""
    values = (torch.view_as_real(output) if output.is_complex() else output).flatten().float()
    return (values * torch.arange(1.0, len(values) + 1, device=values.device).cos()).sum()


def _positions(around: Surroundings) -> list[bytes]:
    """Where all random generators stand."""
    python, _, numpy = randomness.state()
    states = [generator_state(device) for device in (torch.device("cpu"), *around.devices)]
    states += [generator.get_state() for generator in around.generators]
    return [repr((python, numpy)).encode(), *(bytes(state.numpy()) for state in states)]


def _differences(one: _Outcome, other: _Outcome) -> dict[str, float]:
    pairs = {
        "outputs": (one.outputs, other.outputs),
        "gradients": (one.gradients, other.gradients),
        "state": (one.state, other.state),
    }
    return {what: _largest(here, there) for what, (here, there) in pairs.items()}


def _largest(ours: Sequence[Tensor | None], theirs: Sequence[Tensor | None]) -> float:
    if len(ours) != len(theirs):
        return float("inf")
    return max((_difference(one, other) for one, other in zip(ours, theirs, strict=True)), default=0.0)


def _difference(one: Tensor | None, other: Tensor | None) -> float:
    """The largest difference in parts of the largest value; NaN equals NaN."""
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    differs = (one != other) & ~((one != one) & (other != other))
    if not differs.any():
        return 0.0
    here, there = one[differs], other[differs]
    if not (torch.isfinite(here).all() and torch.isfinite(there).all()):
        return float("inf")
    wide = torch.complex128 if one.is_complex() else torch.float64
    scale = one.to(wide).abs().nan_to_num(0.0, 0.0, 0.0).max()
    return float((here.to(wide) - there.to(wide)).abs().max() / scale) if scale > 0 else float("inf")
