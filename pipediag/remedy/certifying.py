"""Proof that a replay gives the pixels that the CPU would have made, measured on the user's own samples.

Each sample is made twice under one random state: for real, and recorded. The draws must leave the generators where
they would have been; each op is held against torchvision's own call on the CPU with the same parameters; the whole
batch is held against the batch of real samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import functional as older

from ..ladder import randomness, tree
from ..ladder.places import label
from .packing import pack, pack_ops
from .plan import Plan
from .replay import replay, replay_on
from .tape import Tape, is_recording

#: The largest difference of floating point results, as a share of their range.
FLOAT_TOLERANCE = 1e-5
#: Integer results may differ by one level on this share of the pixels.
INTEGER_SHARE = 1e-3
#: A level that an integer op is off by grows in the ops after it, on the same few pixels.
_GROWN = 4 / 255
#: Two measurements of how often torchvision's own results differ between devices agree to this share of the pixels.
_SAMPLING = 1e-4


@dataclass(frozen=True)
class Difference:
    """How far results are from the CPU's.

    Attributes:
        largest: of all elements; a share of the range for floating point results, levels for integers.
        mean: over all elements, in the same unit.
        off: the share of elements that differ by more than the tolerance (floats) or at all (integers).
    """

    largest: float = 0.0
    mean: float = 0.0
    off: float = 0.0
    floating: bool = True

    @property
    def equal(self) -> bool:
        return self.largest == 0

    @property
    def within(self) -> bool:
        if self.floating:
            return self.largest <= FLOAT_TOLERANCE
        return self.largest <= 1 and self.off <= INTEGER_SHARE


@dataclass(frozen=True)
class Verdict:
    """One op, or the whole chain, over all samples that took it.

    ``torchvision`` is the difference between torchvision's own results on the CPU and on the device, measured where
    the replay's exceeds the tolerance; a replay no farther off than that passes. ``rounded`` says that an integer op
    of the chain was off within its own tolerance, which the chain then inherits.
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
    """What was measured for one loader on one device."""

    ops: tuple[Verdict, ...]
    whole: Verdict
    draws_equal: bool
    samples: int
    device: str

    @property
    def failed(self) -> frozenset[str]:
        """Names of the functions whose replay is too far off."""
        return frozenset(verdict.name for verdict in self.ops if not verdict.passed)

    @property
    def passed(self) -> bool:
        return self.draws_equal and self.whole.passed and all(verdict.passed for verdict in self.ops)

    def __str__(self) -> str:
        draws = "the random generators end where they would have" if self.draws_equal else "FAIL the draws differ"
        return "\n".join([*(v.sentence for v in self.ops), self.whole.sentence, f"{draws} ({self.samples} samples)"])


def certify(
    dataset: Any,
    collate: Callable[[Any], Any],
    plan: Plan,
    device: torch.device,
    indices: Sequence[Any],
    batch_size: int = 8,
) -> Certificate:
    """Hold a plan's replays on ``device`` against the CPU, on the samples at ``indices``."""
    ops: dict[str, _Compared] = {}
    whole = _Compared()
    draws_equal = True
    with randomness.undisturbed():
        for begin in range(0, len(indices), batch_size):
            part = indices[begin : begin + batch_size]
            before = randomness.state()
            real = [dataset[index] for index in part]
            after = randomness.state()
            real_batch = collate(real)
            randomness.restore(before)
            with plan.at_work(dataset):
                recorded = [dataset[index] for index in part]
                draws_equal = draws_equal and _same(randomness.state(), after)
                packed = pack(collate(recorded), plan.fuse)
            made = replay(packed, device, plan.moved)
            pairs = zip(_tensors(made), _tensors(real_batch), strict=True)
            within = [whole.ours.add(ours, reference) for ours, reference in pairs]
            if not all(within):
                for tape, want in _outcomes(recorded, real):
                    whole.theirs.add(_on(device, tape), want)
            for tape, _ in _outcomes(recorded, real):
                _by_op(tape, device, plan, ops)
            randomness.restore(after)
    verdicts = tuple(compared.verdict(name) for name, compared in ops.items())
    rounded = any(not v.difference.floating and not v.difference.equal and v.passed for v in verdicts)
    overall = replace(whole.verdict("the whole batch"), samples=len(indices), rounded=rounded)
    return Certificate(verdicts, overall, draws_equal, len(indices), str(device))


class _Sum:
    """Differences, added up."""

    def __init__(self) -> None:
        self._largest = self._total = self._off = 0.0
        self._elements = 0
        self._floating = False
        self.samples = 0

    def add(self, ours: Tensor, reference: Tensor) -> bool:
        """Whether the two are within the tolerance of one another."""
        one = _difference(ours.as_subclass(Tensor).cpu(), reference.as_subclass(Tensor))
        self.samples += 1
        self._largest = max(self._largest, one.largest)
        self._total += one.mean * reference.numel()
        self._off += one.off * reference.numel()
        self._elements += reference.numel()
        self._floating = self._floating or one.floating
        return one.within

    @property
    def difference(self) -> Difference:
        elements = max(1, self._elements)
        return Difference(self._largest, self._total / elements, self._off / elements, self._floating)


def _difference(ours: Tensor, reference: Tensor) -> Difference:
    floating = reference.is_floating_point()
    if ours.shape != reference.shape or ours.dtype != reference.dtype:
        return Difference(math.inf, math.inf, 1.0, floating)
    if reference.numel() == 0:
        return Difference(floating=floating)
    want, got = reference.double(), ours.double()
    apart = (got - want).abs()
    apart[torch.isnan(want) & torch.isnan(got)] = 0
    if floating:
        apart /= max(1.0, float(want.max() - want.min()))
    off = apart > (FLOAT_TOLERANCE if floating else 0)
    largest = float(apart.max().nan_to_num(math.inf))
    return Difference(largest, float(apart.mean()), float(off.double().mean()), floating)


class _Compared:
    """Ours against the CPU, and torchvision's own result on the device where ours is off: there alone it counts."""

    def __init__(self) -> None:
        self.ours = _Sum()
        self.theirs = _Sum()

    def verdict(self, name: str) -> Verdict:
        ours, theirs = self.ours.difference, self.theirs.difference
        if ours.within or not self.theirs.samples:
            return Verdict(name, self.ours.samples, ours)
        # Of the samples where ours is within the tolerance torchvision's counts as equal.
        share = self.theirs.samples / self.ours.samples
        return Verdict(name, self.ours.samples, ours, replace(theirs, mean=theirs.mean * share, off=theirs.off * share))


def _by_op(tape: Tape, device: torch.device, plan: Plan, compared: dict[str, _Compared]) -> None:
    """Run the calls of a tape one by one on the CPU, and each call's ops on the device beside it."""
    image, ops = tape.source, iter(tape.ops)
    for call in tape.calls:
        mine = tuple(next(ops) for _ in range(call.ops))
        result = call(image)
        if mine:
            one = compared.setdefault(label(call.fn), _Compared())
            start, want = _tensor(image), _tensor(result)
            packed = pack_ops([(mine, (0,) * len(mine))], tuple(start.shape), start.dtype, plan.fuse)
            made = replay_on(packed, start.to(device)[None], plan.moved)
            if not one.ours.add(made.reshape(want.shape), want) and isinstance(image, Tensor):
                one.theirs.add(_again_on(device, call, image), want)
        image = result


def _again_on(device: torch.device, call: Any, image: Tensor) -> Tensor:
    """torchvision's own call on the device."""
    with randomness.undisturbed():
        args = [value.to(device) if isinstance(value, Tensor) else value for value in call.args]
        kwargs = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in call.kwargs.items()}
        result = call.fn(image.to(device), *args, **kwargs)
    own: Tensor = result if call.part is None else result[call.part]
    return own


def _on(device: torch.device, tape: Tape) -> Tensor:
    """The whole tape by torchvision's own calls, on the device from where there is a tensor on."""
    image = tape.source
    for call in tape.calls:
        image = _again_on(device, call, image) if isinstance(image, Tensor) else call(image)
    return _tensor(image)


def _tensor(image: Any) -> Tensor:
    return image.as_subclass(Tensor) if isinstance(image, Tensor) else older.pil_to_tensor(image)


def _tensors(batch: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree.leaves(batch) if isinstance(leaf, Tensor))


def _outcomes(recorded: Any, real: Any) -> Iterator[tuple[Tape, Tensor]]:
    for mine, want in zip(tree.leaves(recorded), tree.leaves(real), strict=True):
        if is_recording(mine) and not hasattr(mine, "parts"):
            yield mine.tape, want


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    numpy_one, numpy_other = one[2], other[2]
    alike = one[0] == other[0] and torch.equal(one[1], other[1])
    if numpy_one is None or numpy_other is None:
        return bool(alike)
    return bool(alike and (numpy_one[1] == numpy_other[1]).all() and numpy_one[2:] == numpy_other[2:])
