"""Compute a callable's results on the CPU, after checking that they depend on the samples alone."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...usercode.randomness import moved, state, undisturbed
from ..certify.differences import equal
from .held import Held, Refused

#: Shape and dtype of an image.
Kind = tuple[tuple[int, ...], torch.dtype]
#: Seed for the second run of each sample, so that a result that depends on a seed differs.
_OTHER_SEED = 0x5EED


class Group(NamedTuple):
    """Samples of one shape and dtype ``(n, C, H, W)``, and the callable's results for each ``(n, ...)``."""

    inputs: Tensor
    expected: Tensor

    @property
    def given(self) -> Kind:
        return tuple(self.inputs.shape[1:]), self.inputs.dtype

    @property
    def made(self) -> Kind:
        return tuple(self.expected.shape[1:]), self.expected.dtype


class Reference(NamedTuple):
    """CPU results; ``regular`` is False if the callable fails for darker or lighter images, or could not be tried."""

    groups: list[Group]
    regular: bool


class _Raised(Refused):
    """Error: the callable raises."""


class _NumpyWatch(TorchFunctionMode):  # type: ignore[misc]
    """Detector of tensors that are converted to numpy, and so to SciPy and Pillow."""

    _WAYS = frozenset({"numpy", "__array__", "__dlpack__"})
    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or getattr(func, "__name__", "") in self._WAYS
        return func(*args, **kwargs or {})


def told(error: Exception) -> str:
    """Describe an error of the user's code in one short line."""
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:120]}" if line else type(error).__name__


def reference_of(fn: Callable[[Tensor], Tensor], samples: Sequence[Tensor]) -> Reference:
    """Return the results of ``fn`` for two or more images ``(C, H, W)`` on the CPU, which may differ in shape.

    ``fn`` and the values it holds may change if it is refused.

    Raises:
        Refused: the results depend on anything else than the image, or ``fn`` changes what it holds.
    """
    if len(samples) < 2:
        raise Refused("there are fewer than two samples to prove it on")
    # As in a worker, whatever the caller's settings: gradients on, and the CPU as the default device.
    with undisturbed(), torch.enable_grad(), torch.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = Held(fn)
        results = _repeatable(fn, samples, held)
        reference = _with_companions(fn, samples, results)
        held.check()
    return reference


def _repeatable(fn: Callable[[Tensor], Tensor], samples: Sequence[Tensor], held: Held) -> list[Tensor]:
    """Return the results, after checking that they stay the same in another order and under other seeds."""
    results = [_result(fn, sample) for sample in samples]
    held.check()  # before the results are compared: kept state is the better reason
    _reseed()
    with _NumpyWatch() as numpys:
        for sample, result in zip(reversed(samples), reversed(results), strict=True):
            if not equal(_result(fn, sample), result):
                raise Refused("its result for the same image differs from call to call")
    if numpys.seen:
        raise Refused("it goes through numpy, which works in the CPU's memory only")
    return results


def _with_companions(fn: Callable[[Tensor], Tensor], samples: Sequence[Tensor], results: Sequence[Tensor]) -> Reference:
    """Return samples and results in groups of one shape, with companions of each group's first sample."""
    grouped: dict[Kind, list[tuple[Tensor, Tensor]]] = {}
    for sample, result in zip(samples, results, strict=True):
        grouped.setdefault((tuple(sample.shape), sample.dtype), []).append((sample, result))
    regular = True
    for pairs in grouped.values():
        companions = _companions(pairs[0][0])
        regular = regular and bool(companions)
        for companion in companions:
            try:
                pairs.append((companion, _result(fn, companion)))
            except _Raised:
                regular = False
    return Reference([_stacked(pairs) for pairs in grouped.values()], regular)


def _result(fn: Callable[[Tensor], Tensor], sample: Tensor) -> Tensor:
    """Return the result of ``fn`` for one sample, as a plain tensor with its own memory."""
    given = sample.clone()
    version, before = given._version, state()
    try:
        result: Any = fn(given)
    except Exception as error:
        raise _Raised(f"it raises {told(error)}") from error
    if type(result) is not Tensor:
        raise Refused(f"it returns an object of type {type(result).__name__!r} rather than one plain tensor")
    drawn = moved(before, state())
    if drawn:
        raise Refused(f"it draws from {drawn} random generator, whose numbers the device does not have")
    if given._version != version or not equal(given, sample):
        raise Refused("it writes into its input")
    if result.requires_grad:
        raise Refused("its result carries gradients")
    if result.device.type != "cpu" or result.layout != torch.strided:
        raise Refused("its result is no dense tensor in the CPU's memory")
    return result.clone(memory_format=torch.contiguous_format)


def _reseed() -> None:
    """Set other random states than before, for the CPU only."""
    random.seed(_OTHER_SEED)
    torch.default_generator.manual_seed(_OTHER_SEED)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(_OTHER_SEED)


def _companions(sample: Tensor) -> list[Tensor]:
    """Return variants of the sample: a darker one, a lighter one and black; for booleans, the inverse.

    Photographs have much in common, such as a brightest pixel of 255: on a batch of them, ``x / x.max()`` seems to
    treat each image separately. Besides, a shape that occurs only once says nothing about batches.
    """
    dark, light = sample.clone(), sample.clone()
    halved = None if sample.is_floating_point() or sample.is_complex() else "floor"
    try:
        if sample.dtype == torch.bool:
            return [dark.logical_not_()]
        dark.div_(2, rounding_mode=halved)
        light.div_(2, rounding_mode=halved).add_(dark.abs().max())
    except RuntimeError:  # no pixels, or a dtype without arithmetic in torch
        return []
    return [dark, light, sample.clone().zero_()]


def _stacked(pairs: list[tuple[Tensor, Tensor]]) -> Group:
    if len({(result.shape, result.dtype) for _, result in pairs}) > 1:
        raise Refused("the shape or dtype of its result depends on the pixels")
    return Group(torch.stack([sample for sample, _ in pairs]), torch.stack([result for _, result in pairs]))
