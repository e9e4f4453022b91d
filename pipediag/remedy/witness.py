"""Samples made twice under one random state, for real and recorded: what a certificate is made from.

It is the half of the proof that needs the user's code; it runs in a process of its own. The device's half is in
:mod:`pipediag.remedy.certifying`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision.transforms import functional as older

from ..ladder import randomness, tree
from .ops import Op, Shape
from .packing import Packed, pack
from .plan import Place, Plan
from .recorder import unhidden
from .tape import Call, Tape, is_recording


class Step(NamedTuple):
    """One functional call, and the ops that replay it."""

    call: Call | None  # None: the user's own link at ``own``
    own: Place | None
    name: str
    ops: tuple[Op, ...]


class Told(NamedTuple):
    """One image: its source and what was called on it."""

    source: Any
    steps: tuple[Step, ...]
    shape: Shape


class Witness(NamedTuple):
    """A few samples, made both ways.

    ``faithful`` says whether torchvision's calls, made one by one on the CPU with what was recorded, give the real
    samples exactly: then nothing is missing from the record.
    """

    samples: int
    packed: Packed | None  # None: they could not be recorded, for the reason that ``why`` gives
    real: Any
    told: tuple[Told, ...]
    draws_equal: bool
    faithful: bool
    why: str = ""


def witness(dataset: Any, collate: Callable[[Any], Any], plan: Plan, indices: Sequence[Any]) -> Witness:
    """Make the samples at ``indices`` both ways. An error of the dataset's own is the user's to see."""
    before = randomness.state()
    real = [dataset[index] for index in indices]
    after = randomness.state()
    real_batch = collate(real)
    randomness.restore(before)
    try:
        with plan.at_work(dataset), unhidden():
            recorded = [dataset[index] for index in indices]
            draws_equal = _same_state(randomness.state(), after)
            packed = pack(collate(recorded), plan.fuse)
    except Exception as error:
        return Witness(len(indices), None, None, (), True, True, f"{type(error).__name__}: {error}")
    finally:
        randomness.restore(after)
    outcomes = list(_outcomes(recorded, real))
    faithful = all(_same(_remade(tape), want) for tape, want in outcomes)
    told = tuple(_told(tape, plan) for tape, _ in outcomes)
    return Witness(len(indices), packed, real_batch, told, draws_equal, faithful)


def _outcomes(recorded: Any, real: Any) -> Iterator[tuple[Tape, Any]]:
    for mine, want in zip(tree.leaves(recorded), tree.leaves(real), strict=True):
        if not is_recording(mine):
            continue
        parts = getattr(mine, "parts", None)
        if parts is None:
            yield mine.tape, want
        else:
            yield from _outcomes(list(parts), list(want))


def _remade(tape: Tape) -> Any:
    image = tape.source
    for call in tape.calls:
        image = call(image)
    return image


def _told(tape: Tape, plan: Plan) -> Told:
    ops = iter(tape.ops)
    owners = {shapes.fn: place for place, shapes in plan.own.items()}
    steps = []
    for call in tape.calls:
        place = owners.get(call.fn)
        mine = tuple(next(ops) for _ in range(call.ops))
        steps.append(Step(call if place is None else None, place, call.name, mine))
    return Told(tape.source, tuple(steps), tuple(tape.state.shape))


def tensor_of(image: Any) -> Tensor:
    return image.as_subclass(Tensor) if isinstance(image, Tensor) else older.pil_to_tensor(image)


def _same(made: Any, want: Any) -> bool:
    made, want = tensor_of(made), tensor_of(want)
    alike = made.shape == want.shape and made.dtype == want.dtype
    return alike and bool(torch.equal(made, want) or torch.equal(made.nan_to_num(), want.nan_to_num()))


def _same_state(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    numpy_one, numpy_other = one[2], other[2]
    alike = one[0] == other[0] and torch.equal(one[1], other[1])
    if numpy_one is None or numpy_other is None:
        return bool(alike)
    return bool(alike and (numpy_one[1] == numpy_other[1]).all() and numpy_one[2:] == numpy_other[2:])
