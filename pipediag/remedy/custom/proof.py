"""Prove that a callable can move to the device: run all checks in order and return the result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...usercode.randomness import undisturbed
from ..threads import as_in_a_worker
from .agreement import largest_difference
from .carried import carried
from .forms import How, form, synchronises
from .held import Held
from .reference import reference_of
from .refusal import Refused
from .shapes import Kind, Shapes


@dataclass(frozen=True)
class Stays:
    """Result for a callable that stays in the worker; ``reason`` is a clause that says why ("it draws from ...")."""

    reason: str


@dataclass(frozen=True)
class Moved:
    """Result for a callable that may run on the device, in the form that was proven.

    ``apply`` takes ``(N, C, H, W)`` on the device, of the samples' dtype, and returns the ``N`` results stacked; it
    raises ``RuntimeError`` if a batch call gives another number of results. ``largest`` is the largest difference from
    the CPU's results, as a fraction of their range. ``synchronises`` is True if the CPU waits for the device in it.
    """

    how: How
    apply: Callable[[Tensor], Tensor]
    largest: float
    synchronises: bool
    shapes: Shapes
    _held: Held = field(repr=False)

    def out(self, shape: Sequence[int], dtype: torch.dtype) -> Kind:
        """Return shape and dtype of one result for one input of ``shape`` and ``dtype``: see :meth:`Shapes.out`."""
        return self.shapes.out(shape, dtype)

    def stale(self) -> bool:
        """Return whether the user's callable holds other values now; ``apply`` uses those it held when proven."""
        return self._held.changed() is not None


def prove(
    fn: Callable[[Tensor], Tensor],
    samples: Sequence[Tensor],
    device: torch.device,
    tolerance: float = 1e-5,
    allow_loop: bool = True,
) -> Moved | Stays:
    """Move ``fn`` to ``device`` if that makes no difference for ``samples``; otherwise return the reason why not.

    ``samples`` are two or more images on the CPU as ``fn`` gets them, which may differ in shape. Floats may differ by
    ``tolerance`` of the results' range, integers by one level in 0.1 % of their elements. Without ``allow_loop``, one
    call must process the whole batch. ``fn`` itself, the values it holds and the random state do not change.
    """
    # As in a worker, whatever the caller's settings: one thread, gradients on, and the CPU as the default device.
    with as_in_a_worker(), undisturbed(), torch.enable_grad(), torch.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _moved(fn, samples, device, tolerance, allow_loop)
        except Refused as refused:
            return Stays(str(refused))


def _moved(
    fn: Callable[[Tensor], Tensor], samples: Sequence[Tensor], device: torch.device, tolerance: float, allow_loop: bool
) -> Moved:
    """Return the first form that agrees with the CPU's results.

    Raises:
        Refused: none does.
    """
    if len(samples) < 2:
        raise Refused("there are fewer than two samples to prove it on")
    held = Held(fn)
    try:
        groups, by_pixels = reference_of(fn, samples, held)
    finally:
        held.put_back()
    on_device = carried(fn, device)
    shapes = Shapes(fn, {group.given: group.made for group in groups})
    refusal = Refused("it may decide by the pixels, which takes a loop")
    for how in _forms(by_pixels, allow_loop):
        apply = form(how, on_device, device)
        try:
            largest = largest_difference(apply, how, groups, device, tolerance)
        except Refused as refused:
            if how != "vmap" or not by_pixels:  # vmap's own message would say less
                refusal = refused
            continue
        return Moved(how, apply, largest, synchronises(apply, groups[0].inputs, device), shapes, held)
    raise refusal


def _forms(by_pixels: bool, allow_loop: bool) -> Iterator[How]:
    # A batch call does not reveal that all samples took the same branch by chance; vmap refuses to branch on pixels.
    if not by_pixels:
        yield "batch"
    yield "vmap"
    if allow_loop:
        yield "loop"
