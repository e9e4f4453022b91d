"""Fetch and collate by torch's own fetcher, also with recording images.

Of ``default_collate``, torch's code builds the structure, with :class:`Parts` in place of stacked tensors if no other
code would see them: the stacking waits until the batch's place in memory is known. All else is left to torch, including
tensors that cannot be stacked, for which it raises its usual errors.

Another collate function may copy images into a batch tensor: into its rows, as timm's ``fast_collate`` does, or into
parts of its rows, to pad them. A recording image has no pixels to copy. Instead, the image of each part is noted, and a
tensor whose rows are complete counts as the stack of its images. Other code may not read such a tensor, whose memory
does not hold the images.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ...usercode.attributes import has_attribute, is_exactly
from ...usercode.objects import replaced
from ..decode.undecoded import decoded
from ..ops.op import NotRecordable
from .hooks import register
from .images import RecordingStack, Unreadable, real
from .session import session
from .substitutes import as_recorded, is_recording
from .views import RecordingView, as_it_is


def fetched(
    dataset: Any,
    indices: Sequence[Any],
    begin: Callable[[], None] = lambda: None,
    end: Callable[[list[Any]], None] = lambda samples: None,
) -> Any:
    """Return samples as torch's loader fetches them.

    ``begin`` is called before each that is fetched alone, and ``end`` with all samples so far after each.
    """
    fetcher = _MapDatasetFetcher(dataset, True, _unchanged, False)
    if has_attribute(type(dataset), "__getitems__"):
        return fetcher.fetch(indices)
    many = getattr(dataset, "__getitems__", None)
    if many:
        return many(indices)
    samples: list[Any] = []
    for index in indices:
        begin()
        samples += fetcher.fetch([index])
        end(samples)
    return samples


def sample_of(dataset: Any, index: Any) -> Any:
    """Return one sample. Torch's own code calls the dataset, since warnings and tracebacks name the caller's file."""
    return _MapDatasetFetcher(dataset, False, _unchanged, False).fetch(index)


def batch_of(samples: Any, collate: Callable[[Any], Any]) -> Any:
    """Return what ``collate`` makes of the samples. Torch's own code calls it too."""
    return _MapDatasetFetcher([samples], False, collate, False).fetch(0)


def _unchanged(samples: Any) -> Any:
    return samples


def real_leaf(leaf: Any) -> Any:
    """Return the real image for a recording one, decoded; any other leaf itself.

    Raises:
        NotRecordable: an image was turned into another tensor, which has no pixels.
    """
    if isinstance(leaf, Tensor) and not is_recording(leaf) and leaf.is_meta:
        raise NotRecordable("an image was turned into another tensor")
    if not is_recording(leaf):
        return decoded(leaf)
    made = real(leaf)
    if isinstance(leaf, Unreadable):
        leaf.becomes(made)  # for whoever keeps it
    return made


# ---- default_collate


class Parts:
    """Tensors of one shape and dtype, to be stacked; ``shape`` is that of the result."""

    __slots__ = ("dtype", "shape", "tensors")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.shape = (len(tensors), *tensors[0].shape)
        self.dtype = tensors[0].dtype


def stacking(collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return :func:`collated` in place of torch's own ``default_collate``; any other function unchanged."""
    return collated if collate_fn is default_collate else collate_fn


def collated(samples: Any) -> Any:
    """Collate as ``default_collate``, with :class:`Parts` in place of stacked tensors if possible."""
    if not (_is_torchs_own() and _is_usual(samples[0])):
        return default_collate(samples)
    return collate(samples, collate_fn_map={**default_collate_fn_map, Tensor: _stacked_later})


def _is_torchs_own() -> bool:
    """Return whether torch's table of collate functions holds only torch's and ours."""
    return all(function.__module__ in _KNOWN for function in default_collate_fn_map.values())


_KNOWN = (collate.__module__, register.__module__)


def _is_usual(sample: Any) -> bool:
    """Return whether no container of the sample is of the user's own type, which might look at its items."""
    if type(sample) is dict:
        return all(map(_is_usual, sample.values()))
    if is_exactly(sample, tuple, list) or is_named_tuple(sample):
        return all(map(_is_usual, sample))
    return isinstance(sample, (str, bytes)) or not isinstance(sample, (Mapping, Sequence))


def is_named_tuple(value: Any) -> bool:
    """Return whether the value is a named tuple whose class adds nothing to its fields."""
    return isinstance(value, tuple) and has_attribute(value, "_fields") and type(value).__bases__ == (tuple,)


def _stacked_later(batch: Sequence[Tensor], *, collate_fn_map: Any = None) -> Any:
    like = (batch[0].shape, batch[0].dtype)
    # In this process torch keeps the order of the dimensions in memory.
    lies = batch[0].ndim > 3 and get_worker_info() is None
    if all(is_plain(one) and (one.shape, one.dtype) == like and (not lies or one.is_contiguous()) for one in batch):
        return Parts(batch)
    return default_collate_fn_map[Tensor](batch, collate_fn_map=collate_fn_map)


def is_plain(value: Any) -> bool:
    """Return whether the value is a dense tensor in CPU memory, without gradient, quantization or other attributes."""
    return (
        type(value) is Tensor
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_nested or value.is_conj() or value.is_neg())
    )


# ---- rows of a tensor


_LATER = "the collate function reads the batch after it has copied images into it"
_KEPT = "the collate function keeps the batch that it copies images into"

#: Methods that read no element: they return a view, a property, or the tensor itself.
_HARMLESS = frozenset(
    getattr(Tensor, name) if callable(getattr(Tensor, name)) else getattr(Tensor, name).__get__
    for name in (
        *("__getitem__", "__iter__", "__len__", "unbind", "select", "narrow"),
        *("size", "stride", "dim", "numel", "is_contiguous", "is_floating_point"),
        *("shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_cuda"),
    )
)


def assembled(collate: Callable[[Any], Any], samples: Any) -> Any:
    """Return the batch that ``collate`` makes of samples with recording images.

    Raises:
        NotRecordable: a tensor that got images lives on; or, in a trial, code needs its pixels.
    """
    if collate is default_collate or collate is collated:  # the user's may define equality
        return collate(samples)
    with _Rows() as rows:
        batch = batch_of(samples, collate)
    if not rows.tensors:
        return batch
    tensors = [weakref.ref(tensor) for tensor, _, _ in rows.tensors.values()]
    try:
        stacked = replaced(batch, rows.stack_for)
    except NotRecordable as error:
        rows.settle(error)
        return batch
    del batch
    rows.tensors.clear()
    if any(tensor() is not None for tensor in tensors):
        raise NotRecordable(_KEPT)
    return stacked


#: A part of a tensor: its size, strides and offset.
Region = tuple[tuple[int, ...], tuple[int, ...], int]


class _Rows(TorchFunctionMode):  # type: ignore[misc]
    """Record of the images written into tensors."""

    def __init__(self) -> None:
        super().__init__()
        #: By id: each tensor, itself or a copy as it was before, and its images in order.
        self.tensors: dict[int, tuple[Tensor, Tensor, dict[Region, Any]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        image = _WRITES.get(func)
        try:
            if image is not None and len(args) > image and is_plain(args[0]):
                part = args[image]
                if not is_recording(part) and self._holds(args[0]) and not self._writes_back(func, args):
                    part = as_recorded(part)  # a sample that was not recorded, among others
                if is_recording(part):
                    into = args[0][args[1]] if func is Tensor.__setitem__ else args[0]
                    self._write(into, part, adds=func in _ADDS)
                    return args[0]
            if self.tensors and func not in _HARMLESS and not self._writes_back(func, args):
                self._check((args, *(kwargs or {}).values()))
        except NotRecordable as error:
            self.settle(error)
            args = tuple(one.settled() if is_recording(one) else one for one in args)
        return func(*args, **kwargs or {})

    def settle(self, error: NotRecordable) -> None:
        """Write the noted images into their tensors: code needs the pixels, for the reason in ``error``.

        Raises:
            NotRecordable: ``error``, in a trial.
        """
        session.settles(error)
        for tensor, _, images in self.tensors.values():
            for (size, strides, offset), image in images.items():
                tensor.as_strided(size, strides, tensor.storage_offset() + offset).copy_(real(image))
        self.tensors.clear()

    def stack_for(self, leaf: Any) -> Any:
        """Return what stands for a tensor with the images written into it; any other leaf unchanged.

        Raises:
            NotRecordable: the leaf is only a part of the tensor.
        """
        if not isinstance(leaf, Tensor) or id(leaf) not in self.tensors:
            self._check((leaf,))
            return leaf
        tensor, before, images = self.tensors[id(leaf)]
        row = tensor[0]
        rows = [(tuple(row.shape), row.stride(), k * row.numel()) for k in range(len(tensor))]
        if len(images) == len(rows) and all(region in images for region in rows):
            return RecordingStack.made_of([images[region] for region in rows])
        first = before.flatten()[0]
        into = first.item() if bool((before == first).all()) else before.clone()
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return RecordingView.of_result(like, "written", (into, tensor.shape, [*images], [*images.values()]), {})

    def _write(self, into: Tensor, image: Any, adds: bool) -> None:
        whole = into if into._base is None else into._base
        alike = (image.shape, image.dtype, into.dtype) == (into.shape, into.dtype, whole.dtype)
        if not alike or not whole.is_contiguous():
            raise NotRecordable("the collate function copies an image into something of another size, type or layout")
        if id(whole) not in self.tensors:
            self.tensors[id(whole)] = whole, self._before(whole), {}
        _, _, images = self.tensors[id(whole)]
        region = tuple(into.shape), into.stride(), into.storage_offset() - whole.storage_offset()
        rows_only = adds and {tuple(whole.shape[1:])} >= {region[0], *(size for size, _, _ in images)}
        if adds and (not rows_only or region in images or into.count_nonzero()):
            raise NotRecordable("the collate function adds images")
        images.pop(region, None)
        images[region] = as_it_is(image).apart()

    def _before(self, whole: Tensor) -> Tensor:
        return whole

    def _writes_back(self, func: Any, args: Any) -> bool:
        """Return whether a row is written to its own place, the last step of ``batch[row] += image``."""
        if func is not Tensor.__setitem__ or not isinstance(args[2], Tensor) or id(args[0]) not in self.tensors:
            return False
        here, there = args[0][args[1]], args[2]
        return here.data_ptr() == there.data_ptr() and (here.shape, here.stride()) == (there.shape, there.stride())

    def _check(self, values: Any) -> None:
        for value in values:
            if isinstance(value, (list, tuple)):
                self._check(value)
            elif isinstance(value, Tensor) and not is_recording(value) and self._holds(value):
                raise NotRecordable(_LATER)

    def _holds(self, tensor: Tensor) -> bool:
        """Return whether images have been written into the tensor, or the one that it is a view of."""
        return id(tensor if tensor._base is None else tensor._base) in self.tensors


class RealRows(_Rows):
    """The same for real images: they are copied, and the rows are noted of their twins (:mod:`.twins`)."""

    def __init__(self, twins: Any) -> None:
        super().__init__()
        self._twins = twins

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raised = NotRecordable.raised
        try:
            self._follow(func, args, kwargs or {})
        except Exception as error:  # none of the user's
            NotRecordable.raised = raised  # nothing is hidden
            self._twins.lost(str(error))
            self.tensors.clear()
        return func(*args, **kwargs or {})

    def _before(self, whole: Tensor) -> Tensor:
        return whole.clone()

    def twin_of(self, leaf: Any) -> Any:
        """Return the twin of a part of the batch, or the part itself if it has none."""
        twin = self._twins.of(leaf)
        return twin if is_recording(twin) else self.stack_for(leaf)

    def _follow(self, func: Any, args: Any, kwargs: Any) -> None:
        image = _WRITES.get(func)
        if image is not None and len(args) > image and is_plain(args[0]):
            twin = self._twins.of(args[image])
            if not is_recording(twin) and self._holds(args[0]) and not self._writes_back(func, args):
                twin = as_recorded(twin)
            if is_recording(twin):
                self._write(args[0][args[1]] if func is Tensor.__setitem__ else args[0], twin, adds=func in _ADDS)
                return
        if self.tensors and func not in _HARMLESS and not self._writes_back(func, args):
            self._check((args, *kwargs.values()))


_ADDS = frozenset({Tensor.__iadd__, Tensor.add_})
#: Methods that write, and the position of the argument that they write.
_WRITES = {Tensor.copy_: 1, Tensor.__setitem__: 2, **dict.fromkeys(_ADDS, 1)}
