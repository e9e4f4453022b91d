"""Callables of the user's own on the device: moved only after proof on the user's own samples.

A lambda, a function, an object or a module that takes one image ``(C, H, W)`` is code that nobody has read. It may
run on the device instead of in the worker only if that makes no difference, which takes two things to show: that its
result depends on its input alone (it draws nothing, keeps nothing, writes into nothing), and that some way of running
it for a whole batch on the device gives the CPU's results, for the user's own samples, however they are batched.
"""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import pickle
import random
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..ladder.paths import same
from ..ladder.randomness import state, undisturbed
from ..ladder.slots import names_in

How = Literal["batch", "vmap", "loop"]
#: A shape and a dtype: all that can be known of an image without its pixels.
Kind = tuple[tuple[int, ...], torch.dtype]

#: What may be held by a callable: beyond it, watching takes too long and the device's memory is better used.
_MOST_PLACES, _MOST_BYTES = 100_000, 1 << 28
#: Batches of these sizes are tried besides the whole: up to four, which is where code that looks at the number of
#: channels may take a batch for an image.
_SIZES = (1, 2, 3, 4)
#: How far integers may be off, and how many of them.
_LEVELS, _SHARE = 1, 1e-3
#: The second run of each sample starts from here, so that a result that depends on a seed differs.
_OTHER_SEED = 0x5EED


@dataclass(frozen=True)
class Stays:
    """The callable stays in the worker; ``reason`` is a sentence's part that says why ("it draws from ...")."""

    reason: str


@dataclass
class Shapes:
    """What comes out of a callable for an input of some shape and dtype; travels to the workers.

    ``known`` holds the answers so far, those of the proof to begin with.
    """

    fn: Callable[[Tensor], Tensor]
    known: dict[Kind, Kind] = field(default_factory=dict)

    def out(self, shape: Sequence[int], dtype: torch.dtype) -> Kind:
        """Shape and dtype of the result, found by a run without pixels, or on zeros where that fails.

        Raises what the callable raises on zeros.
        """
        given = tuple(shape), dtype
        if given not in self.known:
            try:
                result = self.fn(torch.empty(given[0], dtype=dtype, device="meta"))
            except Exception:  # it holds tensors that are not of the meta device, or it looks at pixels
                result = self.fn(torch.zeros(given[0], dtype=dtype, device="cpu"))
            self.known[given] = tuple(result.shape), result.dtype
        return self.known[given]


@dataclass(frozen=True)
class Moved:
    """The callable on the device, as it was proven.

    ``apply`` takes ``(N, C, H, W)`` on the device, of the samples' dtype, and returns the ``N`` results stacked; it
    raises ``RuntimeError`` where a batch call gives another number of results. ``largest`` is the largest difference
    to the CPU's results, as a share of their range. ``synchronises`` says whether the CPU waits for the device in it.
    """

    how: How
    apply: Callable[[Tensor], Tensor]
    largest: float
    synchronises: bool
    shapes: Shapes
    _held: _Held = field(repr=False)

    def out(self, shape: Sequence[int], dtype: torch.dtype) -> Kind:
        """Shape and dtype of one result for one input of ``shape`` and ``dtype``: see :meth:`Shapes.out`."""
        return self.shapes.out(shape, dtype)

    def stale(self) -> bool:
        """Whether the user's callable holds something else by now: ``apply`` works with what it held when proven."""
        return self._held.changed() is not None


class _Refused(Exception):
    """A reason to stay."""


class _Raised(_Refused):
    """The callable raises."""


def prove(
    fn: Callable[[Tensor], Tensor],
    samples: Sequence[Tensor],
    device: torch.device,
    tolerance: float = 1e-5,
    allow_loop: bool = True,
) -> Moved | Stays:
    """Move ``fn`` to ``device`` if that makes no difference for ``samples``, else say why not.

    ``samples`` are two or more images on the CPU as ``fn`` gets them, which may differ in shape. Floats may differ by
    ``tolerance`` of the results' range, integers by one level in 0.1 % of their elements. Without ``allow_loop`` one
    call must do for the whole batch. ``fn`` itself, what it holds and the random state are left as they were.
    """
    # As in a worker, whatever holds around the call: gradients on, and the CPU the default device.
    with undisturbed(), torch.enable_grad(), torch.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _prove(fn, samples, device, tolerance, allow_loop)
        except _Refused as refused:
            return Stays(str(refused))


def _prove(
    fn: Callable[[Tensor], Tensor], samples: Sequence[Tensor], device: torch.device, tolerance: float, allow_loop: bool
) -> Moved | Stays:
    if len(samples) < 2:
        raise _Refused("there are fewer than two samples to prove it on")
    held = _Held(fn)
    try:
        reference = _reference(fn, samples, held)
        by_pixels = reference.irregular or _decides_by_pixels(fn, reference.groups)
        held.check()
    finally:
        held.put_back()
    moved = _carried(fn, device)
    shapes = Shapes(fn, {group.given: group.made for group in reference.groups})
    refusal = _Refused("it may decide by the pixels, which takes a loop")
    for how in _forms(by_pixels, allow_loop):
        apply = _form(how, moved, device)
        try:
            largest = _judged(apply, how, reference.groups, device, tolerance)
        except _Refused as refused:
            if how != "vmap" or not by_pixels:  # vmap's own message would tell less
                refusal = refused
            continue
        return Moved(how, apply, largest, _synchronises(apply, reference.groups[0], device), shapes, held)
    raise refusal


def _forms(by_pixels: bool, allow_loop: bool) -> Iterator[How]:
    # That all samples took the same branch by chance, a batch call does not show; vmap refuses to decide by pixels.
    if not by_pixels:
        yield "batch"
    yield "vmap"
    if allow_loop:
        yield "loop"


# What it does on the CPU


class _Group(NamedTuple):
    """Samples of one shape and dtype ``(n, C, H, W)``, and what the callable makes of them one by one ``(n, ...)``."""

    inputs: Tensor
    expected: Tensor

    @property
    def given(self) -> Kind:
        return tuple(self.inputs.shape[1:]), self.inputs.dtype

    @property
    def made(self) -> Kind:
        return tuple(self.expected.shape[1:]), self.expected.dtype


class _Reference(NamedTuple):
    """What the CPU makes of the samples; ``irregular`` where it fails for them made darker or lighter."""

    groups: list[_Group]
    irregular: bool


class _NumpyWatch(TorchFunctionMode):  # type: ignore[misc]
    """Notices a tensor's pixels going to numpy, and so to SciPy and Pillow."""

    _WAYS = frozenset({"numpy", "__array__", "__dlpack__"})
    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or getattr(func, "__name__", "") in self._WAYS
        return func(*args, **kwargs or {})


def _reference(fn: Callable[[Tensor], Tensor], samples: Sequence[Tensor], held: _Held) -> _Reference:
    """The CPU's results, once it is shown that they depend on the samples alone."""
    first = []
    for sample in samples:
        first.append(_result(fn, sample))
        if len(first) == 1:  # one that counts is stopped at one
            held.check()
    _reseed()
    with _NumpyWatch() as numpys:
        for sample, result in zip(reversed(samples), reversed(first), strict=True):
            if not _identical(_result(fn, sample), result):
                raise _Refused("its result for the same image differs from call to call")
    held.check()
    if numpys.seen:
        raise _Refused("it goes through numpy, which works in the CPU's memory only")

    grouped: dict[Kind, list[tuple[Tensor, Tensor]]] = {}
    for sample, result in zip(samples, first, strict=True):
        grouped.setdefault((tuple(sample.shape), sample.dtype), []).append((sample, result))
    irregular = False
    for pairs in grouped.values():
        companions = _companions(pairs[0][0])
        for companion in companions:
            try:
                pairs.append((companion, _result(fn, companion)))
            except _Raised:
                irregular = True
        irregular = irregular or not companions
    return _Reference([_stacked(pairs) for pairs in grouped.values()], irregular)


def _result(fn: Callable[[Tensor], Tensor], sample: Tensor) -> Tensor:
    """What ``fn`` makes of one sample, as a plain tensor of its own memory."""
    given = sample.clone()
    version, before = given._version, state()
    try:
        result: Any = fn(given)
    except Exception as error:
        raise _Raised(f"it raises {_told(error)}") from error
    if not isinstance(result, Tensor):
        raise _Refused(f"it returns an object of type {type(result).__name__!r} rather than one tensor")
    drawn = _drawn_from(before, state())
    if drawn:
        raise _Refused(f"it draws from {drawn} random generator, whose numbers the device does not have")
    if given._version != version or not _identical(given, sample):
        raise _Refused("it writes into its input")
    if result.requires_grad:
        raise _Refused("its result carries gradients")
    if result.device.type != "cpu" or result.layout != torch.strided:
        raise _Refused("its result is no dense tensor in the CPU's memory")
    return _plain(result).clone(memory_format=torch.contiguous_format)


def _companions(sample: Tensor) -> list[Tensor]:
    """The sample in its lower and in its upper half of levels.

    Photographs have much in common, as a brightest pixel of 255: ``x / x.max()`` over a batch of them seems to keep
    them apart. And a shape may occur once only, which says nothing about a batch.
    """
    dark, light = sample.clone(), sample.clone()
    halved = None if sample.is_floating_point() or sample.is_complex() else "floor"
    try:
        if sample.dtype == torch.bool:
            return [dark.logical_not_()]
        dark.div_(2, rounding_mode=halved)
        light.div_(2, rounding_mode=halved).add_(dark.abs().max())
    except RuntimeError:  # no pixels, or a dtype that torch does not calculate in
        return []
    return [dark, light]


def _stacked(pairs: list[tuple[Tensor, Tensor]]) -> _Group:
    if len({(result.shape, result.dtype) for _, result in pairs}) > 1:
        raise _Refused("the shape or dtype of its result depends on the pixels")
    return _Group(torch.stack([_plain(sample) for sample, _ in pairs]), torch.stack([result for _, result in pairs]))


def _decides_by_pixels(fn: Callable[[Tensor], Tensor], groups: list[_Group]) -> bool:
    """Whether ``fn`` fails, or might fail, without pixels: where it looks at them in Python, to branch for example."""
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        return True
    for group in groups:
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                fn(torch.empty(group.inputs.shape[1:], dtype=group.inputs.dtype))
        except Exception:
            return True
    return False


def _drawn_from(before: tuple[Any, ...], after: tuple[Any, ...]) -> str | None:
    """Whose generator is not where it was."""
    if before[0] != after[0]:
        return "Python's"
    if not torch.equal(before[1], after[1]):
        return "torch's"
    # None before numpy is imported, which the call itself may do.
    return "numpy's" if before[2] is not None and same(before[2], after[2]) is not True else None


def _reseed() -> None:
    """Other random states than before, the CPU's only."""
    random.seed(_OTHER_SEED)
    torch.default_generator.manual_seed(_OTHER_SEED)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(_OTHER_SEED)


def _told(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:120]}" if line else type(error).__name__


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().as_subclass(Tensor)


def _identical(left: Tensor, right: Tensor) -> bool:
    """Equal shape, dtype and elements, NaN included."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    left, right = _plain(left), _plain(right)
    return bool(((left == right) | ((left != left) & (right != right))).all())


# What it does on the device


def _form(how: How, fn: Callable[[Tensor], Tensor], device: torch.device) -> Callable[[Tensor], Tensor]:
    """``fn`` for a batch, as a batch call, under vmap or in a loop."""

    def batch(images: Tensor) -> Tensor:
        result = fn(images)
        if result.shape[:1] != images.shape[:1]:
            raise RuntimeError(f"a batch of shape {tuple(images.shape)} gave a result of shape {tuple(result.shape)}")
        return result

    def loop(images: Tensor) -> Tensor:
        return torch.stack([fn(image) for image in images.unbind(0)])

    form = {"batch": batch, "vmap": torch.vmap(fn), "loop": loop}[how]

    def apply(images: Tensor) -> Tensor:
        # What fn makes of numbers (a mean, a grid) is to be made on the device; a loop under autocast is to get what
        # was proven without; and one result that vmap expanded to all samples could not be written to.
        with device, torch.autocast(device.type, enabled=False):
            return _plain(form(images.contiguous())).contiguous()

    return apply


def _judged(
    apply: Callable[[Tensor], Tensor], how: How, groups: list[_Group], device: torch.device, tolerance: float
) -> float:
    """The largest difference to the CPU's results, as a share of their range.

    Raises _Refused where one is beyond the tolerance, or where the callable fails on the device.
    """
    largest, scale = 0.0, _range(groups)
    try:
        for group in groups:
            inputs, expected = group.inputs.to(device), group.expected.to(device)
            for picked in _groupings(len(inputs), how):
                chosen = picked.to(device)
                difference = _difference(apply(inputs[chosen]), expected[chosen], scale, tolerance)
                largest = max(largest, difference)
    except _Refused:
        raise
    except Exception as error:
        raise _Refused(f"on the device it raises {_told(error)}") from error
    return largest


def _groupings(number: int, how: How) -> Iterator[Tensor]:
    """Which of ``number`` samples make a batch: all, all in another order, and all in small batches."""
    everything = torch.arange(number)
    yield everything
    if how == "loop":  # runs them one by one anyway
        return
    yield torch.randperm(number, generator=torch.Generator().manual_seed(0))
    for size in _SIZES:
        if size < number:
            yield from everything.split(size)


def _range(groups: list[_Group]) -> float:
    """The range of all results: what differences are measured by."""
    numbers = [_number(group.expected) for group in groups]
    finite = [values for values in (values[values.isfinite()] for values in numbers) if values.numel()]
    if not finite:
        return 1.0
    low, high = min(float(values.min()) for values in finite), max(float(values.max()) for values in finite)
    return high - low or max(abs(low), abs(high)) or 1.0


def _difference(actual: Tensor, expected: Tensor, scale: float, tolerance: float) -> float:
    """The largest difference, as a share of ``scale``; raises _Refused where it is too large."""
    if actual.device.type != expected.device.type:
        raise _Refused("its result is not on the device")
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise _Refused("its result has another shape or dtype on the device")
    if not expected.numel():
        return 0.0
    a, b = _number(actual), _number(expected)
    finite = a.isfinite() & b.isfinite()
    if not (finite | (a == b) | (a.isnan() & b.isnan())).all():
        raise _Refused("its result on the device is not finite where the CPU's is, or the other way round")
    gaps = torch.where(finite, (a - b).abs(), 0)
    largest = float(gaps.max())
    if expected.is_floating_point() or expected.is_complex():
        agrees = largest / scale <= tolerance
    else:
        allowed = 0 if expected.dtype == torch.bool else _LEVELS
        agrees = largest <= allowed and int((gaps > 0).sum()) <= _SHARE * gaps.numel()
    if not agrees:
        raise _Refused(f"its result on the device differs from the CPU's by {largest / scale:.2g} of the range")
    return largest / scale


def _number(tensor: Tensor) -> Tensor:
    """The elements in a type that they can be compared in."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        return tensor.float() if tensor.element_size() < 4 else tensor
    return tensor.long()


def _synchronises(apply: Callable[[Tensor], Tensor], group: _Group, device: torch.device) -> bool:
    """Whether the CPU waits for the device while the callable runs."""
    if device.type != "cuda":
        return False
    inputs = group.inputs.to(device)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        apply(inputs)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


# What it holds

_VALUES = (int, float, complex, str, bytes, type(None), type(...), enum.Enum, torch.dtype, torch.device)
_CODE = (types.ModuleType, types.BuiltinFunctionType, types.CodeType)
_LIBRARIES = frozenset({"torch", "torchvision", "numpy", "scipy", "PIL"})
#: Objects of these are entered by ways of their own, if at all.
_OPAQUE = sys.stdlib_module_names | {"numpy", "PIL"}


def _root(obj: Any) -> str:
    return (getattr(obj, "__module__", None) or "builtins").partition(".")[0]


def _is_installed(obj: Any) -> bool:
    """Whether a function or class is of a library: it is taken to keep nothing and to hold no tensors."""
    if _root(obj) in _LIBRARIES or _root(obj) in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(obj.__module__), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _is_record(obj: Any) -> bool:
    """Whether an object is entered by its attributes."""
    return _root(type(obj)) not in _OPAQUE and (hasattr(obj, "__dict__") or bool(_slot_values(obj)))


def _global_names(fn: types.FunctionType) -> list[str]:
    return sorted(set(names_in(fn.__code__)))


def _cells(fn: types.FunctionType) -> list[tuple[str, types.CellType]]:
    """The variables closed over, those that are filled."""
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    return [(name, cell) for name, cell in cells if _filled(cell)]


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _slot_values(obj: Any) -> dict[str, Any]:
    names = [name for cls in type(obj).__mro__ for name in _slot_names(cls)]
    return {name: getattr(obj, name) for name in names if hasattr(obj, name)}


def _slot_names(cls: type) -> list[str]:
    slots = vars(cls).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    hidden = [f"_{cls.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names]
    return [name for name in hidden if name not in ("__dict__", "__weakref__")]


def _class_values(cls: type) -> dict[str, Any]:
    """What the class itself defines, Python's own attributes left out and its methods kept."""
    kept = {"__call__"}
    return {name: value for name, value in vars(cls).items() if name in kept or not name.startswith("__")}


def _behind(value: Any) -> Any:
    """The function behind a static method, class method or property."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


class _Spot:
    """A place where a callable could keep something: ``now`` says by name what is there, ``put`` writes it back."""

    def __init__(
        self, now: Callable[[], dict[Any, Any]], put: Callable[[dict[Any, Any]], Any], draws: bool = False
    ) -> None:
        self._now, self._put, self._kept = now, put, now()
        self.draws = draws

    def changed(self) -> str | None:
        """The first name whose value is another one; equal data in a new object is no change."""
        now, gone = self._now(), object()
        for name in {**self._kept, **now}:
            before, after = self._kept.get(name, gone), now.get(name, gone)
            if before is not after and same(before, after) is not True:
                return str(name)
        return None

    def undo(self) -> None:
        try:
            self._put(self._kept)
        except Exception:  # an object that lets nobody write to it
            pass


class _Held:
    """What a callable holds and can reach, as it was: closures, globals, attributes, and everything in them.

    Raises _Refused where that is too much.
    """

    def __init__(self, fn: Any) -> None:
        self._spots: list[_Spot] = []
        seen: dict[int, Any] = {}
        pending: list[tuple[str, Any]] = [("itself", fn)]
        held_bytes = 0
        while pending:
            name, value = pending.pop()
            if id(value) in seen:
                continue
            seen[id(value)] = value
            held_bytes += _nbytes(value)
            if held_bytes > _MOST_BYTES:
                raise _Refused(f"it holds more than {_MOST_BYTES >> 20} MiB, too much to be watched and taken along")
            spots, inside = _look(name, value, value is fn)
            self._spots += spots
            pending += [(name, part) for name, part in inside if not isinstance(part, (*_VALUES, *_CODE))]
            if len(seen) + len(pending) > _MOST_PLACES:
                raise _Refused(f"it holds more than {_MOST_PLACES} objects, too many to be watched for changes")

    def changed(self) -> _Spot | None:
        """The first place that is not as it was."""
        return next((spot for spot in self._spots if spot.changed() is not None), None)

    def check(self) -> None:
        """Raises _Refused where something changed."""
        spot = self.changed()
        if spot is not None and spot.draws:
            raise _Refused(f"it draws from a random generator of its own ({spot.changed()})")
        if spot is not None:
            raise _Refused(f"it keeps state between calls ({spot.changed()})")

    def put_back(self) -> None:
        """Undo what changed, wherever the place can be written to."""
        for spot in self._spots:
            if spot.changed() is not None:
                spot.undo()


_Inside = list[tuple[str, Any]]


def _look(name: str, obj: Any, entered: bool) -> tuple[list[_Spot], _Inside]:
    """The places of one object and what is in them; ``entered`` even if it is a library's."""
    if isinstance(obj, Tensor):
        return [_tensor_spot(name, obj)], []
    if isinstance(obj, types.FunctionType):
        return _look_into_function(name, obj) if entered or not _is_installed(obj) else ([], [])
    if isinstance(obj, types.MethodType):
        return [], [(name, obj.__self__), (name, obj.__func__)]
    if isinstance(obj, functools.partial):
        return [], [(name, obj.func), (name, obj.args), (name, obj.keywords)]
    if isinstance(obj, type):
        return ([], []) if _is_installed(obj) else _look_into_class(obj)
    if isinstance(obj, dict):
        return [_names_spot(obj)], [(str(key), value) for key, value in obj.items()]
    if isinstance(obj, (list, deque)):
        return [_items_spot(name, obj)], [(name, item) for item in obj]
    if isinstance(obj, (tuple, frozenset)):
        return [], [(name, item) for item in obj]
    generator = _generator_spot(name, obj)
    if generator is not None:
        return [generator], []
    return _look_into_record(obj) if _is_record(obj) else ([_content_spot(name, obj)], [])


def _look_into_function(name: str, fn: types.FunctionType) -> tuple[list[_Spot], _Inside]:
    names, cells = _global_names(fn), _cells(fn)
    spots = [_names_spot(fn.__globals__, names), *(_cell_spot(variable, cell) for variable, cell in cells)]
    inside = [(n, fn.__globals__[n]) for n in names if n in fn.__globals__]
    inside += [(variable, cell.cell_contents) for variable, cell in cells]
    return spots, [*inside, (name, fn.__dict__), (name, fn.__defaults__), (name, fn.__kwdefaults__)]


def _look_into_class(cls: type) -> tuple[list[_Spot], _Inside]:
    def put(kept: dict[str, Any]) -> None:
        for name in _class_values(cls).keys() - kept.keys():
            type.__delattr__(cls, name)
        for name in [name for name, value in kept.items() if vars(cls).get(name) is not value]:
            type.__setattr__(cls, name, kept[name])

    inside = [(name, _behind(value)) for name, value in _class_values(cls).items()]
    return [_Spot(lambda: _class_values(cls), put)], [*inside, *((base.__name__, base) for base in cls.__bases__)]


def _look_into_record(obj: Any) -> tuple[list[_Spot], _Inside]:
    attributes, slots = getattr(obj, "__dict__", {}), _slot_values(obj)
    spots = [_names_spot(attributes), _Spot(lambda: _slot_values(obj), lambda kept: _set_all(obj, kept))]
    return spots, [(type(obj).__name__, type(obj)), *attributes.items(), *slots.items()]


def _set_all(obj: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        object.__setattr__(obj, name, value)


def _names_spot(mapping: dict[Any, Any], names: Sequence[str] | None = None) -> _Spot:
    """A dict: attributes, items, or of a module's globals ``names`` only."""

    def now() -> dict[Any, Any]:
        return dict(mapping) if names is None else {name: mapping[name] for name in names if name in mapping}

    def put(kept: dict[Any, Any]) -> None:
        for name in now().keys() - kept.keys():
            del mapping[name]
        mapping.update(kept)

    return _Spot(now, put)


def _items_spot(name: str, items: list[Any] | deque[Any]) -> _Spot:
    def put(kept: dict[Any, Any]) -> None:
        items.clear()
        items.extend(kept.values())

    return _Spot(lambda: {f"{name}[{i}]": item for i, item in enumerate(items)}, put)


def _cell_spot(name: str, cell: types.CellType) -> _Spot:
    return _Spot(
        lambda: {name: cell.cell_contents} if _filled(cell) else {},
        lambda kept: setattr(cell, "cell_contents", kept[name]),
    )


def _tensor_spot(name: str, tensor: Tensor) -> _Spot:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:  # not to be compared
        return _Spot(lambda: {name: tensor._version}, lambda kept: None)

    def put(kept: dict[Any, Any]) -> None:
        with torch.no_grad():
            tensor.copy_(kept[name])

    return _Spot(lambda: {name: tensor.detach().clone()}, put)


def _generator_spot(name: str, obj: Any) -> _Spot | None:
    """A random generator that the user made."""
    numpy = sys.modules.get("numpy")
    get: Callable[[], Any]
    put: Callable[[Any], None]
    if isinstance(obj, torch.Generator):
        get, put = obj.get_state, obj.set_state
    elif isinstance(obj, random.Random) and not isinstance(obj, random.SystemRandom):
        get, put = obj.getstate, obj.setstate
    elif numpy is not None and isinstance(obj, numpy.random.RandomState):
        get, put = obj.get_state, obj.set_state
    elif numpy is not None and isinstance(obj, numpy.random.Generator):
        get, put = lambda: obj.bit_generator.state, lambda kept: setattr(obj.bit_generator, "state", kept)
    else:
        return None
    return _Spot(lambda: {name: get()}, lambda kept: put(kept[name]), draws=True)


def _content_spot(name: str, obj: Any) -> _Spot:
    """Anything else: an array, a set, a counter of itertools. Only an array's content can be put back."""
    if _is_array(obj):
        return _Spot(lambda: {name: obj.copy()}, lambda kept: obj.__setitem__(..., kept[name]))
    return _Spot(lambda: {name: _content(obj)}, lambda kept: None)


def _content(obj: Any) -> Any:
    for told in (pickle.dumps, repr):
        try:
            return told(obj)
        except Exception:  # what cannot be told is left to the comparison of the results
            continue
    return None


def _nbytes(obj: Any) -> int:
    if isinstance(obj, Tensor):
        return int(obj.numel() * obj.element_size())
    return int(obj.nbytes) if _is_array(obj) else 0


def _is_array(obj: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, numpy.ndarray)


# Taking it along


def _carried(fn: Any, device: torch.device) -> Callable[[Tensor], Tensor]:
    """``fn`` with all tensors it holds on ``device``: a copy wherever it holds any, itself where not."""
    carrier = _Carrier(device, fn)
    try:
        moved = carrier.of(fn)
        # A call looks for __call__ at the class, which stays: its own globals are reached only past it.
        call = inspect.getattr_static(type(fn), "__call__", None)
        if isinstance(call, types.FunctionType):
            own = carrier.of(call)
            moved = types.MethodType(own, moved) if own is not call else moved
    except Exception as error:
        raise _Refused(f"what it holds cannot be copied to the device: {_told(error)}") from error
    result: Callable[[Tensor], Tensor] = moved
    return result


class _Carrier:
    """Copies to the device: of tensors and modules, and of what holds such; all else is shared with the user's."""

    def __init__(self, device: torch.device, root: Any) -> None:
        self._device = device
        self._root = root
        self._done: dict[int, tuple[Any, Any]] = {}  # with the original, so that its id stays taken

    def of(self, value: Any) -> Any:
        """``value`` on the device; the same object where nothing in it is to be moved."""
        if isinstance(value, (*_VALUES, *_CODE)):
            return value
        if id(value) not in self._done:
            self._done[id(value)] = value, value  # for what refers back to it
            self._done[id(value)] = value, self._copy(value)
        return self._done[id(value)][1]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, types.FunctionType):
            return value if _is_installed(value) and value is not self._root else self._function(value)
        if isinstance(value, types.MethodType):
            owner, fn = self.of(value.__self__), self.of(value.__func__)
            return value if owner is value.__self__ and fn is value.__func__ else types.MethodType(fn, owner)
        if isinstance(value, functools.partial):
            parts = self.of(value.func), self.of(value.args), self.of(value.keywords)
            if parts[0] is value.func and parts[1] is value.args and parts[2] is value.keywords:
                return value
            return functools.partial(parts[0], *parts[1], **parts[2])
        if isinstance(value, dict):
            changes = self._changes(value)
            return _with_items(value, changes) if changes else value
        if isinstance(value, (list, tuple)):
            changes = self._changes(dict(enumerate(value)))
            return _with_items(value, changes) if changes else value
        return self._record(value) if _is_record(value) and not isinstance(value, type) else value

    def _changes(self, values: dict[Any, Any]) -> dict[Any, Any]:
        """Those of the values that are others on the device."""
        carried = {name: self.of(value) for name, value in values.items()}
        return {name: value for name, value in carried.items() if value is not values[name]}

    def _tensor(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":  # where the user put it
            return tensor
        return tensor.detach().to(self._device, copy=True).requires_grad_(tensor.requires_grad)

    def _module(self, module: torch.nn.Module) -> torch.nn.Module:
        fresh = copy.deepcopy(module).to(self._device)
        for part in fresh.modules():
            self._done[id(part)] = part, part
        for part in fresh.modules():
            plain = {n: v for n, v in vars(part).items() if n not in ("_parameters", "_buffers", "_modules")}
            _set_all(part, self._changes(plain))
            _set_all(part, _bound(self._class_changes(part), part))
        return fresh

    def _record(self, obj: Any) -> Any:
        changes = self._changes({**_slot_values(obj), **getattr(obj, "__dict__", {})})
        of_class = self._class_changes(obj)
        if not changes and not of_class:
            return obj
        fresh = copy.copy(obj)
        _set_all(fresh, changes)
        _set_all(fresh, _bound(of_class, fresh))
        return fresh

    def _class_changes(self, obj: Any) -> dict[str, Any]:
        """What an object finds at its class and is another on the device: tensors, and methods that use such."""
        found: dict[str, Any] = {}
        for cls in reversed(type(obj).__mro__):
            found.update({} if _is_installed(cls) else _class_values(cls))
        own = {"__call__", *getattr(obj, "__dict__", {})}
        reachable = {name: value for name, value in found.items() if name not in own}
        static = {name: value.__func__ for name, value in reachable.items() if isinstance(value, staticmethod)}
        changes = self._changes({**reachable, **static})
        return {name: staticmethod(value) if name in static else value for name, value in changes.items()}

    def _function(self, fn: types.FunctionType) -> types.FunctionType:
        """The function over again, with another closure and in a copy of its globals, where these hold tensors."""
        used = {name: fn.__globals__[name] for name in _global_names(fn) if name in fn.__globals__}
        moved_globals = self._changes(used)
        moved_cells = self._changes({name: cell.cell_contents for name, cell in _cells(fn)})
        attached = fn.__defaults__, fn.__kwdefaults__, fn.__dict__
        defaults, named, attributes = moved_attached = tuple(self.of(part) for part in attached)
        if not moved_globals and not moved_cells and all(a is b for a, b in zip(attached, moved_attached, strict=True)):
            return fn
        cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        closure = tuple(types.CellType(moved_cells[n]) if n in moved_cells else cell for n, cell in cells)
        namespace = {**fn.__globals__, **moved_globals} if moved_globals else fn.__globals__
        fresh = types.FunctionType(fn.__code__, namespace, fn.__name__, defaults, closure or None)
        fresh.__kwdefaults__ = named
        fresh.__dict__.update(attributes)
        return fresh


def _bound(of_class: dict[str, Any], obj: Any) -> dict[str, Any]:
    """What a class defines, as attributes of one object of it."""
    return {
        name: value.__get__(obj) if callable(getattr(value, "__get__", None)) else value
        for name, value in of_class.items()
    }


def _with_items(container: Any, changes: dict[Any, Any]) -> Any:
    """A copy of a dict, list or tuple with some of its items replaced."""
    if isinstance(container, tuple):
        items = [changes.get(i, item) for i, item in enumerate(container)]
        return type(container)(*items) if hasattr(container, "_fields") else type(container)(items)
    fresh = copy.copy(container)
    for key, value in changes.items():
        fresh[key] = value
    return fresh
