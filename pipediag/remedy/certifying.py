"""Proof that a replay gives the pixels that the CPU would have made, measured on the user's own samples.

Each sample is made twice under one random state: for real, and recorded. The draws must leave the generators where
they would have been; each op is held against torchvision's own call on the CPU with the same parameters; the whole
batch is held against the batch of real samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import functional as older

from ..ladder import randomness, tree
from ..ladder.places import label
from . import kernels
from .ops import Op
from .packing import pack
from .plan import Plan
from .replay import Own, replay
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
    ops: dict[str, _Sum] = {}
    whole, theirs = _Sum(), _Sum()
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
            for ours, reference in zip(_tensors(made), _tensors(real_batch), strict=True):
                whole.add(ours, reference)
            for tape, want in _outcomes(recorded, real):
                _by_op(tape, device, ops, plan.moved)
                theirs.add(_on(device, tape), want)
            randomness.restore(after)
    verdicts = tuple(total.verdict(name) for name, total in ops.items())
    rounded = any(not v.difference.floating and not v.difference.equal and v.passed for v in verdicts)
    compared = None if whole.difference.within else theirs.difference
    overall = Verdict("the whole batch", len(indices), whole.difference, compared, rounded)
    return Certificate(verdicts, overall, draws_equal, len(indices), str(device))


class _Sum:
    """Differences, added up."""

    def __init__(self) -> None:
        self._largest = self._total = self._off = 0.0
        self._elements = 0
        self._floating = False
        self.samples = 0
        self.theirs: _Sum | None = None

    def add(self, ours: Tensor, reference: Tensor) -> None:
        ours, reference = ours.as_subclass(Tensor).cpu(), reference.as_subclass(Tensor)
        self.samples += 1
        if ours.shape != reference.shape or ours.dtype != reference.dtype:
            self._largest = self._off = self._total = float("inf")
            self._elements += 1
            return
        floating = reference.is_floating_point()
        self._floating = self._floating or floating
        if reference.numel() == 0:
            return
        want = reference.double()
        apart = (ours.double() - want).abs()
        apart[torch.isnan(want) & torch.isnan(ours.double())] = 0
        if floating:
            apart /= max(1.0, float(want.max() - want.min()))
        self._largest = max(self._largest, float(apart.max().nan_to_num(float("inf"))))
        self._total += float(apart.sum())
        self._off += float((apart > (FLOAT_TOLERANCE if floating else 0)).sum())
        self._elements += apart.numel()

    @property
    def difference(self) -> Difference:
        elements = max(1, self._elements)
        return Difference(self._largest, self._total / elements, self._off / elements, self._floating)

    def verdict(self, name: str) -> Verdict:
        theirs = None if self.theirs is None or self.difference.within else self.theirs.difference
        return Verdict(name, self.samples, self.difference, theirs)


def _by_op(tape: Tape, device: torch.device, sums: dict[str, _Sum], own: Own) -> None:
    """Run the calls of a tape one by one on the CPU, and each call's ops on the device beside it."""
    image, ops = tape.source, iter(tape.ops)
    for call in tape.calls:
        mine = [next(ops) for _ in range(call.ops)]
        result = call(image)
        if mine:
            name = label(call.fn)
            total = sums.setdefault(name, _Sum())
            total.theirs = total.theirs or _Sum()
            start, want = _tensor(image).to(device)[None], _tensor(result)
            total.add(_applied(start, mine, own).reshape(want.shape), want)
            if isinstance(image, Tensor):
                total.theirs.add(_again_on(device, call, image), want)
        image = result


def _applied(images: Tensor, ops: Iterable[Op], own: Own) -> Tensor:
    masks = images.ndim == 3
    images = images.unsqueeze(1) if masks else images
    for op in ops:
        if op.name == "custom":
            images = own[op.static[0]].apply(images)
            continue
        numbers = torch.tensor([op.numbers], dtype=torch.float64, device=images.device)
        bulk = images.new_empty(0) if op.bulk is None else op.bulk.to(images.device)[None]
        if op.name == "erase_drawn":
            numbers = torch.cat([numbers, numbers.new_zeros(1, 1)], 1)
            bulk = bulk.flatten()
        images = kernels.apply(op.name, [images], numbers, op.static, bulk)
    return images


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
