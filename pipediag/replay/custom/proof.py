"""Prove that a callable can move to the device: some form of it gives the CPU's results there, for any batching of the
samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from ...usercode.randomness import undisturbed
from ..certify.differences import as_in_a_worker
from .held import Held, Refused, read_now
from .own_copy import own_copy
from .reference import Group, Kind, Reference, told

#: One call for the batch, one call under ``torch.vmap``, or a call for each image.
How = Literal["batch", "vmap", "loop"]


class OnDevice(TorchFunctionMode):  # type: ignore[misc]
    """Replacement of ``tensors``, wherever a function of torch gets them, by copies on the device."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        super().__init__()
        self._originals = tensors  # their ids stay in use
        self._copies = {id(tensor): tensor.detach().to(device, copy=True) for tensor in tensors}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Tensor, self._on_device, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _on_device(self, tensor: Tensor) -> Tensor:
        return self._copies.get(id(tensor), tensor)


def form(how: How, fn: Callable[[Tensor], Tensor], held: OnDevice, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return ``fn``, which takes one image, as a function of a batch ``(N, C, H, W)`` on ``device``; its results are
    stacked."""

    def batch(images: Tensor) -> Tensor:
        result = fn(images)
        if result.shape[:1] != images.shape[:1]:
            raise RuntimeError(f"a batch of shape {tuple(images.shape)} gave a result of shape {tuple(result.shape)}")
        return result

    def loop(images: Tensor) -> Tensor:
        return torch.stack([fn(image) for image in images.unbind(0)])

    run = {"batch": batch, "vmap": torch.vmap(fn), "loop": loop}[how]

    def apply(images: Tensor) -> Tensor:
        # Tensors that fn creates from numbers (a mean, a grid) must be on the device. A loop under autocast must get
        # the results that were proven without it. A result that vmap expanded to all samples could not be written to.
        with device, torch.autocast(device.type, enabled=False), held:
            return run(images.contiguous()).detach().as_subclass(Tensor).contiguous()

    return apply


#: Batch sizes that are tried besides all samples: up to four, because code that checks the number of channels may take
#: such a batch for an image.
_SIZES = (1, 2, 3, 4)
#: Allowed difference of floats, as a fraction of their range, and of integers, in levels; and the fraction of integers
#: that may differ.
_TOLERANCE, _LEVELS, _SHARE = 1e-5, 1, 1e-3


def check_agreement(apply: Callable[[Tensor], Tensor], how: How, groups: Sequence[Group], device: torch.device) -> None:
    """Check the results of ``apply`` on the device.

    Raises:
        Refused: they differ from the CPU's, or the callable fails.
    """
    scale = range_of(groups)
    try:
        for group in groups:
            inputs, expected = group.inputs.to(device), group.expected.to(device)
            for picked in _groupings(len(inputs), how):
                chosen = picked.to(device)
                check_equal(apply(inputs[chosen]), expected[chosen], scale)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"on the device it raises {told(error)}") from error


def _groupings(number: int, how: How) -> Iterator[Tensor]:
    """Yield batches of sample indices: all ``number`` samples, all in another order, and all in small batches."""
    everything = torch.arange(number)
    yield everything
    if how == "loop":  # runs them one by one anyway
        return
    yield torch.randperm(number, generator=torch.Generator().manual_seed(0))
    for size in _SIZES:
        if size < number:
            yield from everything.split(size)


def range_of(groups: Sequence[Group]) -> float:
    """Return the unit of differences: the range of all finite results; if it is zero, their magnitude, or else 1."""
    results = torch.cat([_number(group.expected).double().flatten() for group in groups])
    finite = results[results.isfinite()]
    if not finite.numel():
        return 1.0
    low, high = float(finite.min()), float(finite.max())
    return high - low or abs(high) or 1.0


def check_equal(actual: Tensor, expected: Tensor, scale: float) -> None:
    """Check one batch of results against those of the CPU, whose range is ``scale``.

    Raises:
        Refused: the difference is too large, or device, shape or dtype differ.
    """
    if actual.device.type != expected.device.type:
        raise Refused("its result is not on the device")
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise Refused("its result has another shape or dtype on the device")
    if not expected.numel():
        return
    a, b = _number(actual), _number(expected)
    finite = a.isfinite() & b.isfinite()
    if not (finite | (a == b) | (a.isnan() & b.isnan())).all():
        raise Refused("its result on the device is not finite where the CPU's is, or the other way round")
    gaps = torch.where(finite, (a - b).abs(), 0)
    largest = float(gaps.max())
    if expected.is_floating_point() or expected.is_complex():
        agrees = largest / scale <= _TOLERANCE
    else:
        allowed = 0 if expected.dtype == torch.bool else _LEVELS
        agrees = largest <= allowed and int((gaps > 0).sum()) <= _SHARE * gaps.numel()
    if not agrees:
        raise Refused(f"its result on the device differs from the CPU's by {largest / scale:.2g} of the range")


def _number(tensor: Tensor) -> Tensor:
    """Return the elements in a dtype in which they can be compared."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        return tensor.float() if tensor.element_size() < 4 else tensor
    return tensor.long()


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
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            mode.avoid_device_init = False  # else it asks the driver for devices, which can end a forked process
            with mode:
                fn(torch.empty(shape, dtype=dtype))
    except Exception:
        return True
    return False
