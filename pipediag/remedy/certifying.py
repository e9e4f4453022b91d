"""Prove on the user's own samples that a replay gives the same pixels as the CPU.

Each sample was made twice under one random state, with pixels and recorded
(:mod:`pipediag.remedy.certificate_samples`). The recording must cover every change to the sample. Each op is compared
with torchvision's own call on the CPU with the same parameters, and the whole batch with the batch of real samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torchvision.transforms import functional as older

from ..analysis.remedy import DECODING
from ..analysis.sentences import elsewhere
from ..session import Elsewhere, Pictured
from ..usercode import tree
from ..usercode.randomness import moved
from .certificate_pictures import Pictures
from .certificate_samples import Real, Recorded, Step, Told, images, tensor_of
from .decoding import both_ways
from .exactness import ONE_LEVEL, UNBOUNDED, Input, deviations
from .packed_batch import Packed
from .packing import pack_ops
from .plan import Plan
from .replay import replay, replay_on
from .threads import as_in_a_worker

#: Largest allowed difference of floating-point results, as a fraction of their range.
FLOAT_TOLERANCE = 1e-5
#: Half-precision results may differ by two units in the last place.
_HALF_ULPS = 2
#: Integer results may differ by one level on this fraction of the pixels.
INTEGER_SHARE = 1e-3
#: Limit for a one-level error of an integer op after later ops have amplified it, on the same few pixels.
_GROWN = 4 / 255
#: Two measurements of how often torchvision's results differ between devices agree to this fraction of the pixels.
_SAMPLING = 1e-4


@dataclass(frozen=True)
class Difference:
    """Difference between results and the CPU's results.

    Attributes:
        largest: maximum over all elements; a fraction of the range for floating-point results, levels for integers.
        mean: mean over all elements, in the same unit.
        off: fraction of elements that differ by more than the tolerance (floats) or at all (integers).
    """

    largest: float = 0.0
    mean: float = 0.0
    off: float = 0.0
    floating: bool = True
    tolerance: float = FLOAT_TOLERANCE

    @property
    def equal(self) -> bool:
        return self.largest == 0

    @property
    def within(self) -> bool:
        if self.floating:
            return self.largest <= self.tolerance
        return self.largest <= 1 and self.off <= INTEGER_SHARE


@dataclass(frozen=True)
class Verdict:
    """Result for one op, or for the whole chain, over all samples that took it.

    ``torchvision`` is the difference between torchvision's own results on the CPU and on the device. It is measured if
    the replay's difference exceeds the tolerance; a replay that differs no more than torchvision itself passes.
    ``rounded`` is True if an integer op of the chain differed within its own tolerance; the chain then inherits that
    tolerance.
    """

    name: str
    samples: int
    difference: Difference
    torchvision: Difference | None = None
    rounded: bool = False

    @property
    def passed(self) -> bool:
        ours, theirs = self.difference, self.torchvision
        if ours.within or (self.rounded and ours.largest <= _GROWN and ours.off <= INTEGER_SHARE):
            return True
        return theirs is not None and ours.largest <= theirs.largest and ours.off <= theirs.off + _SAMPLING

    @property
    def sentence(self) -> str:
        d = self.difference
        unit = "of the range" if d.floating else "levels"
        measured = "equal" if d.equal else f"largest {d.largest:.2g} {unit}, {100 * d.off:.3g} % off"
        theirs = "" if self.torchvision is None else f"; torchvision itself: {self.torchvision.largest:.2g}"
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name} ({self.samples} samples): {measured}{theirs}"


@dataclass(frozen=True)
class Certificate:
    """Measurements for one loader on one device.

    Attributes:
        ops: one verdict for each replayed function.
        whole: one verdict for each dtype in the batches.
        faithful: True if the recorded calls, run on the CPU, reproduce the real samples exactly.
        draws_equal: True if the random generators end in the same state both ways.
        samples: number of samples made both ways.
        unrecorded: number of these samples that could not be recorded; ``why`` gives one reason. In training the
            workers make them with pixels.
        elsewhere: the moved transforms that are not exact by construction (:mod:`pipediag.remedy.exactness`), or that
            chance skipped in all samples, and how far their pixels may be off on other samples.
        pictured: a few samples that are images, the most different first.
    """

    ops: tuple[Verdict, ...]
    whole: tuple[Verdict, ...]
    faithful: bool
    draws_equal: bool
    samples: int
    unrecorded: int
    why: str
    device: str
    elsewhere: tuple[Elsewhere, ...] = ()
    pictured: tuple[Pictured, ...] = ()

    @property
    def failed(self) -> frozenset[str]:
        """Names of the functions whose replay is too far off."""
        return frozenset(verdict.name for verdict in self.ops if not verdict.passed)

    @property
    def passed(self) -> bool:
        compared = self.samples > self.unrecorded
        return compared and self.faithful and self.draws_equal and self._within

    @property
    def _within(self) -> bool:
        return all(verdict.passed for verdict in (*self.ops, *self.whole))

    @property
    def pixels(self) -> str:
        """How far the pixels are the CPU's, in words: "equal" if all samples were and all functions are exact."""
        compared = self.samples - self.unrecorded
        equal = all(verdict.difference.equal for verdict in (*self.ops, *self.whole))
        if equal and compared and not self.elsewhere:
            return "equal"
        measured = "equal" if equal else "within the tolerances" if self._within else "too far off"
        return "; ".join(filter(None, [f"{measured} on {compared} samples", elsewhere(self.elsewhere)]))

    def __str__(self) -> str:
        lines = [verdict.sentence for verdict in (*self.ops, *self.whole)]
        lines.append(f"     the pixels are {self.pixels}")
        if not self.faithful:
            lines.append("FAIL the samples were changed by something that was not recorded")
        draws = "ok   the random generators end where they would have" if self.draws_equal else "FAIL the draws differ"
        lines.append(f"{draws} ({self.samples} samples, {self.device})")
        if self.unrecorded:
            lines.append(f"{self.unrecorded} of the samples could not be recorded: {self.why}")
        return "\n".join(lines)


@as_in_a_worker()
def certify(witnesses: Iterable[tuple[Real, Recorded]], plan: Plan, device: torch.device) -> Certificate:
    """Replay the recorded samples on ``device`` and compare them with the real ones."""
    ops: dict[str, _Compared] = {}
    whole: dict[torch.dtype, _Compared] = {}
    pictures = Pictures()
    faithful = draws_equal = True
    samples, unrecorded, why = 0, 0, ""
    inexact: dict[Elsewhere, None] = {}  # in order
    skipped: set[str] = set()
    taken: set[str] = set()
    for real, recorded in witnesses:
        samples += recorded.number
        draws_equal = draws_equal and moved(real.random_state, recorded.random_state) is None
        if recorded.packed is None:
            unrecorded, why = unrecorded + recorded.number, recorded.why
            continue
        packed = recorded.packed
        if packed.files is not None:
            decoding = ops.setdefault(DECODING, _Compared())
            for pixels, users in both_ways(packed.memory, packed.files, device):
                decoding.ours.add(pixels, users.cpu())
            inexact[Elsewhere(DECODING, ONE_LEVEL)] = None
        made = replay(packed.decoded_on_cpu(device), device, plan.moved)
        skipped |= recorded.by_chance
        off = False
        for ours, reference in zip(_tensors(made), _tensors(real.batch), strict=True):
            off = not whole.setdefault(reference.dtype, _Compared()).ours.add(ours, reference) or off
            pictures.add(ours, reference)
        for told, image in images(recorded.samples, real.samples):
            want = _by_op(told, device, plan, ops, inexact)
            taken |= {_link(step, plan) for step in told.steps}
            faithful = faithful and _equal(want, tensor_of(image))
            if off:
                whole.setdefault(want.dtype, _Compared()).theirs.add(_by_torchvision(told, device, plan), want)
    verdicts = tuple(compared.verdict(name) for name, compared in ops.items())
    kernels = [verdict for verdict in verdicts if verdict.name != DECODING]  # whole batches are compared without it
    rounded = any(not v.difference.floating and not v.difference.equal and v.passed for v in kernels)
    batches = [compared.verdict(f"whole batches, {str(dtype)[6:]}") for dtype, compared in whole.items()]
    overall = tuple(replace(verdict, samples=samples - unrecorded, rounded=rounded) for verdict in batches)
    inexact |= {Elsewhere(name, UNBOUNDED): None for name in sorted(skipped - taken)}
    return Certificate(
        verdicts,
        overall,
        faithful,
        draws_equal,
        samples,
        unrecorded,
        why,
        str(device),
        tuple(inexact),
        pictures.drawn(),
    )


def _equal(made: Tensor, want: Tensor) -> bool:
    if made.shape != want.shape or made.dtype != want.dtype:
        return False
    return torch.equal(made, want) or bool(_equal_elements(made, want).all())


def _equal_elements(one: Tensor, other: Tensor) -> Tensor:
    """Return a mask of the elements that are equal, infinities and NaN included."""
    return (one == other) | (one.isnan() & other.isnan())


class _Sum:
    """Sum of differences, with the number of elements of each."""

    def __init__(self) -> None:
        self._parts: list[tuple[Difference, int]] = []

    @property
    def samples(self) -> int:
        return len(self._parts)

    def add(self, ours: Tensor, reference: Tensor) -> bool:
        """Add a pair of results, and return whether they agree within the tolerance."""
        one = _difference(ours.as_subclass(Tensor).cpu(), reference.as_subclass(Tensor))
        self._parts.append((one, reference.numel()))
        return one.within

    @property
    def difference(self) -> Difference:
        elements = max(1, sum(number for _, number in self._parts))
        return Difference(
            largest=max((one.largest for one, _ in self._parts), default=0.0),
            mean=sum(one.mean * number for one, number in self._parts) / elements,
            off=sum(one.off * number for one, number in self._parts) / elements,
            floating=any(one.floating for one, _ in self._parts),
            tolerance=max((one.tolerance for one, _ in self._parts), default=FLOAT_TOLERANCE),
        )


def _difference(ours: Tensor, reference: Tensor) -> Difference:
    floating = reference.is_floating_point()
    tolerance = max(FLOAT_TOLERANCE, _HALF_ULPS * torch.finfo(reference.dtype).eps) if floating else FLOAT_TOLERANCE
    if ours.shape != reference.shape or ours.dtype != reference.dtype:
        return Difference(math.inf, math.inf, 1.0, floating, tolerance)
    if torch.equal(ours, reference):  # usually true, and the comparison below takes a hundred times as long
        return Difference(floating=floating, tolerance=tolerance)
    want, got = reference.double(), ours.double()
    apart = (got - want).abs_().masked_fill_(_equal_elements(got, want), 0)
    if floating:
        apart /= _range(want)
    off = apart > (tolerance if floating else 0)
    largest = float(apart.nan_to_num(math.inf).max())
    return Difference(largest, float(apart.mean()), float(off.double().mean()), floating, tolerance)


def _range(values: Tensor) -> float:
    """Return the span from the lowest to the highest finite value, at least 1."""
    infinite = ~values.isfinite()
    extent = float(values.masked_fill(infinite, -math.inf).max() - values.masked_fill(infinite, math.inf).min())
    return max(1.0, extent)


class _Compared:
    """Our differences from the CPU, and torchvision's own for the samples where ours exceed the tolerance."""

    def __init__(self) -> None:
        self.ours = _Sum()
        self.theirs = _Sum()

    def verdict(self, name: str) -> Verdict:
        ours, theirs = self.ours.difference, self.theirs.difference
        if ours.within or not self.theirs.samples:
            return Verdict(name, self.ours.samples, ours)
        # Samples within our tolerance count as equal for torchvision.
        share = self.theirs.samples / self.ours.samples
        return Verdict(name, self.ours.samples, ours, replace(theirs, mean=theirs.mean * share, off=theirs.off * share))


def _by_op(
    told: Told, device: torch.device, plan: Plan, compared: dict[str, _Compared], inexact: dict[Elsewhere, None]
) -> Tensor:
    """Run the calls one by one on the CPU, compare each call's ops on the device with it, and note which are not exact
    by construction. Return the last CPU result."""
    image = told.source
    for step in told.steps:
        result = _called(step, image, plan)
        if step.ops:
            one = compared.setdefault(step.name, _Compared())
            start, want = tensor_of(image), tensor_of(result)
            given = Input(tuple(start.shape), start.dtype, _made_by(step, image))
            inexact |= {Elsewhere(_transform(step, plan), how): None for how in deviations(step.ops, given)}
            packed = pack_ops([(step.ops, (0,) * len(step.ops))], tuple(start.shape), start.dtype, plan.fuse)
            made = _replayed(packed, start.to(device)[None], plan)
            made = made.reshape(want.shape) if made.numel() == want.numel() else made
            if not one.ours.add(made, want) and isinstance(image, Tensor):
                one.theirs.add(_on_device(step, image, device, plan), want)
        image = result
    return tensor_of(image)


def _made_by(step: Step, image: Any) -> Literal["v2", "v1", "pillow"]:
    if not isinstance(image, Tensor):
        return "pillow"
    return "v1" if step.call is not None and step.call.fn.__module__ == older.__name__ else "v2"


def _link(step: Step, plan: Plan) -> str:
    """Return the name of the user's transform that made a call, or of the function if two transforms could have."""
    names = {piece.links[step.site] for piece in plan.pieces if step.site < len(piece.links)}
    return names.pop() if len(names) == 1 else step.name


def _transform(step: Step, plan: Plan) -> str:
    """Return the name of the user's transform that made a call, with that of the function if it differs."""
    name = _link(step, plan)
    return name if step.name.replace("_", "") in (name.lower(), name) else f"{name} ({step.name})"


def _replayed(packed: Packed, images: Tensor, plan: Plan) -> Tensor:
    """Return the result of one function's kernel, or an empty tensor if the device has no such kernel; that fails the
    comparison."""
    try:
        return replay_on(packed, images, plan.moved)
    except (RuntimeError, TypeError, ValueError):
        return images[:0]


def _called(step: Step, image: Any, plan: Plan) -> Any:
    return step.call(image) if step.call is not None else plan.own[step.own].fn(image)  # type: ignore[index]


def _by_torchvision(told: Told, device: torch.device, plan: Plan) -> Tensor:
    """Run the whole record through torchvision's own calls, on the device from the first tensor on."""
    image = told.source
    for step in told.steps:
        image = _on_device(step, image, device, plan) if isinstance(image, Tensor) else _called(step, image, plan)
    return tensor_of(image)


def _on_device(step: Step, image: Tensor, device: torch.device, plan: Plan) -> Tensor:
    """Run one call on the device, through torchvision itself or the user's own code."""
    if step.call is None:
        return plan.moved[step.own].apply(image.to(device)[None])[0]  # type: ignore[index]
    call = step.call
    args = tuple(value.to(device) if isinstance(value, Tensor) else value for value in call.args)
    kwargs = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in call.kwargs.items()}
    own: Tensor = call._replace(args=args, kwargs=kwargs)(image.to(device))
    return own


def _tensors(batch: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree.leaves(batch) if isinstance(leaf, Tensor))
