"""Prove that a callable can move to the device: some form of it gives the CPU's results there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...usercode.randomness import undisturbed
from ..run.threads import as_in_a_worker
from .agreement import check_agreement
from .forms import How, OnDevice, form
from .held import Held, Refused
from .own_copy import own_copy
from .reads import read_now
from .reference import Kind, Reference


@dataclass
class Shapes:
    """Result shapes and dtypes of a callable by those of its input, for the workers, which compute no results.

    ``known`` holds those found so far, initially by the proof. ``proven`` is the digest of what the callable read in
    the proof: it may move only while it reads the same.
    """

    fn: Callable[[Tensor], Tensor]
    proven: str
    known: dict[Kind, Kind] = field(default_factory=dict)

    def out(self, shape: Sequence[int], dtype: torch.dtype) -> Kind:
        """Return shape and dtype of the result, found by a run without pixels, or on zeros if that fails.

        Raises:
            Exception: any error that the callable raises on zeros.
        """
        given = tuple(shape), dtype
        if given not in self.known:
            try:
                result = self.fn(torch.empty(given[0], dtype=dtype, device="meta"))
            except Exception:  # it holds tensors on the CPU, or reads pixels
                result = self.fn(torch.zeros(given[0], dtype=dtype, device="cpu"))
            self.known[given] = tuple(result.shape), result.dtype
        return self.known[given]


@dataclass(frozen=True)
class Moved:
    """Callable that may run on the device, in the form that was proven.

    ``apply`` takes ``(N, C, H, W)`` on the device, of the samples' dtype, and returns the ``N`` results stacked; it
    raises ``RuntimeError`` if a batch call gives another number of results.
    """

    how: How
    apply: Callable[[Tensor], Tensor]
    shapes: Shapes
    _held: Held = field(repr=False)

    def stale(self) -> bool:
        """Return whether the user's callable holds other values now; ``apply`` uses those it held when proven."""
        return self._held.changed()


def prove(fn: Callable[[Tensor], Tensor], reference: Reference, device: torch.device) -> Moved:
    """Return the first form of ``fn`` that gives the results of ``reference`` on ``device``.

    A copy of ``fn`` runs there, so that the user's own objects, classes and globals may change later.

    Raises:
        Refused: no form does.
    """
    with as_in_a_worker(), undisturbed(), torch.enable_grad(), torch.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = Held(fn)
        try:
            own = own_copy(fn)
        except Exception as error:
            raise Refused(f"what it holds cannot be copied: {error}") from error
        of_own = Held(own)
        if of_own.digest != held.digest:
            raise Refused("what it holds cannot be copied: a copy differs")
        on_device = OnDevice(of_own.tensors, device)
        shapes = Shapes(fn, read_now(held.digest), {group.given: group.made for group in reference.groups})
        refusals = []
        for how in _forms(not reference.regular or _looks_at_pixels(own, shapes.known)):
            apply = form(how, own, on_device, device)
            try:
                check_agreement(apply, how, reference.groups, device)
            except Refused as refused:
                refusals.append(refused)
                continue
            of_own.check()
            return Moved(how, apply, shapes, held)
        raise refusals[-1]


def _forms(by_pixels: bool) -> Iterator[How]:
    # A batch call does not reveal that all samples took the same branch by chance; vmap refuses to branch on pixels.
    if not by_pixels:
        yield "batch"
    yield "vmap"
    yield "loop"


def _looks_at_pixels(fn: Callable[[Tensor], Tensor], kinds: Iterable[Kind]) -> bool:
    """Return whether ``fn`` fails, or might fail, without pixels, because it reads them in Python."""
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode

        for shape, dtype in kinds:
            with FakeTensorMode(allow_non_fake_inputs=True):
                fn(torch.empty(shape, dtype=dtype))
    except Exception:
        return True
    return False
