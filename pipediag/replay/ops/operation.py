"""Describe all ops of one name in one object, and a function whose calls become ops in another.

A file of :mod:`.families` holds a family of ops: the encoders that make them of recorded calls, the kernels that replay
them, and these descriptions. To add an op, add a file there; :mod:`.table` finds it. Its test: for an op that counts as
exact, the kernel gives the function's pixels on random images.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .exactness import Rule, unbounded
from .op import Kind, NotRecordable, Op, Shape, State

Static = tuple[Any, ...]
#: Takes a batch ``(N, C, H, W)``, the samples' numbers ``(N, k)`` in float64, the op's static part, which all samples
#: share, and its drawn tensors (bulk, N first). Returns the batch after the op.
Kernel = Callable[[Tensor, Tensor, Static, Tensor], Tensor]
Box = tuple[int, int, int, int]  # top, left, height, width
#: Returns the ops to replay for drawn values.
Encode = Callable[..., list[Op]]


class Values(NamedTuple):
    """Values to be written into a batch's memory, as a tensor of this shape and dtype."""

    values: Any
    shape: Shape
    dtype: torch.dtype


class Laid(NamedTuple):
    """Arguments of a launch: its static part, and what a kernel reads as numbers and as bulk."""

    static: Static
    numbers: Values | None
    bulk: Values | None


#: Lays out the numbers of the ops of one launch; also the offset, height and width of each image if the images are read
#: where they lie in the batch's memory.
Lay = Callable[[Sequence[Op], Sequence[tuple[int, int, int]]], Laid]


def laid(ops: Sequence[Op], places: Sequence[tuple[int, int, int]]) -> Laid:
    """Lay out a row of numbers for each sample, and stack the drawn tensors."""
    first, rows = ops[0], [op.numbers for op in ops]
    numbers = Values(rows, (len(rows), len(rows[0])), torch.float64) if rows[0] else None
    if first.bulk is None:
        return Laid(first.static, numbers, None)
    return Laid(first.static, numbers, Values([op.bulk for op in ops], (len(ops), *first.bulk.shape), first.bulk.dtype))


@dataclass(frozen=True, eq=False)
class Operation:
    """All that is known of the ops of one name."""

    name: str
    kernel: Kernel  # replays it
    rule: Rule = unbounded  # how far its pixels may be off
    rule_of_v1: Rule | None = None  # the same for functions of torchvision's v1, if they round differently
    each_pixel: bool = False  # whether it works on single pixels: a crop after it may be moved before it
    #: Whether the layout of its result only depends on the order of the image's dimensions in memory.
    by_order: bool = False
    is_view: bool = False  # whether its result may share memory with its input
    reads: Callable[[Op], Box] | None = None  # returns the only box of the image that the op reads
    #: Returns the op for an image of which only that box is left; None if nothing is left to do.
    within: Callable[[Op, Box], Op | None] | None = None
    ragged: bool = False  # whether one launch takes images of different sizes
    #: The operation that reads uint8 originals of different sizes where they lie in the batch's memory; its kernel
    #: takes that memory.
    in_memory: Operation | None = None
    lay: Lay = laid  # see :data:`Lay`
    by_number: bool = False  # whether its numbers lie in a row for each number, not for each sample
    code: int | None = None  # its code in a pixel program (:mod:`.families.pixel_programs`), if it has one
    flip: int = 0  # the bit of a pixel program that flips the image, if the op does
    fused: Fused | None = None  # its fused kernel, if it has one

    def apply(self, parts: Sequence[Tensor], numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
        """Replay the op on images in several tensors, whose rows together are those of ``numbers``.

        Images of different sizes are possible for an op whose results have one size.
        """
        if len({part.shape[1:] for part in parts}) == 1:
            return self.kernel(parts[0] if len(parts) == 1 else torch.cat(list(parts)), numbers, static, bulk)
        done, begin = [], 0
        for part in parts:
            mine = slice(begin, begin + len(part))
            done.append(self.kernel(part, numbers[:, mine] if self.by_number else numbers[mine], static, bulk))
            begin += len(part)
        return torch.cat(done)


class Fused(NamedTuple):
    """Fused kernel of an op on images of up to four channels."""

    operation: Operation  # named ``fast_`` and the op's name
    further: tuple[None, ...] = ()  # further static values: for a conversion before, or a normalization after
    on_bytes: bool = False  # whether it takes uint8 only, not float32
    takes: Callable[[Kind], bool] = lambda kind: True  # whether it replays ops of a kind


@dataclass(frozen=True, eq=False)
class Functional:
    """Function of ``torchvision.transforms.v2.functional`` whose calls are recorded.

    A transform calls it many times with the same settings and different drawn values. ``prepare`` does the work that
    depends on the state and the settings only, once.
    """

    name: str
    #: Takes the state of a recording image (its shape and dtype) and the arguments; returns the ops to replay, an empty
    #: list if the call changes nothing. It reads no pixels. It also does torchvision's arithmetic on Python floats
    #: (matrices, output sizes, anchors), so that a replay only needs numbers.
    encode: Callable[..., Any]
    #: Takes the state and all arguments but the drawn ones, which the returned function takes.
    prepare: Callable[..., Encode] | None = None
    drawn: tuple[str, ...] = ()  # their names, in order
    aliases: tuple[str, ...] = ()  # its other names in ``torchvision.transforms.functional`` (v1)
    several: bool = False  # whether it returns a tuple of images, and ``encode`` a tuple of lists
    in_place: int | None = None  # the number of arguments before its ``inplace``, if it may write into the image
    draws: bool = False  # whether it draws from torch's generator


def drawn_first(name: str, prepare: Callable[..., Encode], *drawn: str) -> Functional:
    """Return a functional whose drawn values come first."""
    count = len(drawn)

    def encode(state: State, *args: Any, **kwargs: Any) -> list[Op]:
        values = (*args[:count], *[kwargs.pop(name) for name in drawn[len(args) :]])
        return prepare(state, *args[count:], **kwargs)(*values)

    return Functional(name, encode, prepare, drawn)


# ---- kernels and encoders of many ops


def from_triton(module: str, name: str) -> Callable[..., Tensor]:
    """Return a function of :mod:`.triton`, which is imported at the first call, since it needs triton."""

    def call(*args: Any, **settings: Any) -> Tensor:
        made: Tensor = getattr(importlib.import_module(f"{__package__}.triton.{module}"), name)(*args, **settings)
        return made

    return call


def by_factor(kernel: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    """Wrap a function of the images and one number for each sample."""
    return lambda x, numbers, static, bulk: kernel(x, numbers[:, 0])


def alike(kernel: Callable[[Tensor], Tensor]) -> Kernel:
    """Wrap a function of the images alone."""
    return lambda x, numbers, static, bulk: kernel(x)


def levelled(name: str, state: State) -> State:
    """Return the state if its dtype holds intensity levels (uint8 or floating point).

    Raises:
        NotRecordable: the dtype is another one.
    """
    if state.dtype != torch.uint8 and not state.dtype.is_floating_point:
        raise NotRecordable(f"{name} of {state.dtype} has no kernel on the device")
    return state


def with_factor(
    name: str, drawn: str, low: float = 0.0, high: float = sys.float_info.max, whole: bool = False
) -> Functional:
    """Return a functional that takes one number, as the op of its name.

    The library refuses a number below ``low`` or above ``high``, or of the image's largest level if that is ``nan``,
    and one that is not ``whole`` if it must be.
    """

    def prepare(state: State) -> Encode:
        op = levelled(name, state).op(name)
        most = high if high == high else 1.0 if state.dtype.is_floating_point else torch.iinfo(state.dtype).max

        def encode(factor: Any) -> list[Op]:
            number = float(factor)
            if not low <= number <= most or (whole and not isinstance(factor, int)):
                raise NotRecordable(f"{name} by {number}, where {low:g} to {most:g} is allowed")
            return [op.given(number)]

        return encode

    return drawn_first(name, prepare, drawn)


def without_numbers(name: str) -> Functional:
    """Return a functional that takes nothing but the image, as the op of its name."""
    return Functional(name, lambda state: [levelled(name, state).op(name)])
