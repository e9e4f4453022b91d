"""Encode a sample as bytes, and decode it without copying them.

A record is a pickle (protocol 5) and the buffers that it refers to: the memory of tensors, arrays and images. The
buffers are not part of the pickle, so decoded tensors and arrays can view the memory that they are read from.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import PipediagError

if TYPE_CHECKING:
    from PIL import Image

#: Dtypes of tensors whose memory numpy can show.
_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.bool, torch.complex64, torch.complex128),
)
_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}
#: Smaller buffers stay in the pickle: reading them from there takes less time than viewing them.
_SMALL = 256


class RecordError(PipediagError):
    """A value that cannot be stored, or a record that cannot be read back."""


class Record(NamedTuple):
    """Encoded value: a pickle, and the buffers that it refers to."""

    head: bytes | memoryview
    buffers: list[memoryview]

    def copied(self) -> Record:
        """Return the record with memory of its own."""
        return Record(self.head, [memoryview(bytearray(buffer)) for buffer in self.buffers])


def encode(value: Any) -> Record:
    """Encode a nest of tensors, arrays, Pillow images and anything else that can be pickled.

    Tensors keep their values, dtype, shape, subclass and attributes, and their strides unless these leave gaps.
    Tensors that share memory are decoded as separate ones. A Pillow image of any class is decoded as a plain
    ``PIL.Image.Image``. The record's buffers may view the value's own memory: store them before that changes.

    Raises:
        RecordError: the value cannot be pickled, or a tensor is not in host memory.
    """
    buffers: list[memoryview] = []

    def separate(buffer: pickle.PickleBuffer) -> bool:
        """Return True if ``buffer`` is to stay in the pickle."""
        memory = buffer.raw()
        if len(memory) < _SMALL:
            return True
        buffers.append(memory)
        return False

    head = io.BytesIO()
    try:
        _Pickler(head, protocol=5, buffer_callback=separate).dump(value)
    except RecordError:
        raise
    except Exception as error:  # whatever the user's own classes raise
        raise RecordError(f"this sample cannot be stored: {_summary(error)}") from error
    return Record(head.getvalue(), buffers)


def decode(record: Record) -> Any:
    """Decode a record. Tensors and arrays view its buffers, which must be writable.

    Raises:
        RecordError: the record does not fit the installed classes or is damaged.
    """
    try:
        return pickle.loads(record.head, buffers=record.buffers)
    except Exception as error:  # whatever the user's own classes raise
        raise RecordError(f"a stored sample cannot be read: {_summary(error)}") from error


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class _Pickler(pickle.Pickler):
    """Pickler that separates the memory of tensors, Pillow images and all arrays; the base class only does so for
    contiguous ones."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _reduced_tensor(value)
        if type(value) is np.ndarray and not (value.flags.forc or value.dtype.hasobject):
            return _reduced_array(value)
        if "PIL.Image" in sys.modules and isinstance(value, sys.modules["PIL.Image"].Image):
            return _reduced_picture(value)
        return NotImplemented


def _reduced_tensor(tensor: Tensor) -> Any:
    if tensor.device.type not in ("cpu", "meta"):
        raise RecordError(f"this sample cannot be stored: it holds a tensor on {tensor.device}, not in host memory")
    kind = type(tensor)
    if _is_plain(tensor):
        return _plain, (pickle.PickleBuffer(tensor.numpy()), _NUMBERS[tensor.dtype], tuple(tensor.shape))
    if not _is_dense(tensor) or kind.__reduce_ex__ not in (Tensor.__reduce_ex__, torch.nn.Parameter.__reduce_ex__):
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg()
        if _extent(plain) > plain.numel():
            plain = plain.contiguous()
        memory = plain.as_strided((_extent(plain),), (1,)).view(torch.uint8).numpy()
        layout = (plain.dtype, tuple(plain.shape), plain.stride())
        state = (kind, tensor.requires_grad, tensor.__dict__ or None)
    return _tensor, (pickle.PickleBuffer(memory), *layout, *state)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether it is a usual tensor: a contiguous array in host memory, without anything besides."""
    return (
        type(tensor) is Tensor
        and tensor.dtype in _NUMBERS
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.__dict__ or tensor.is_conj() or tensor.is_neg())
        and tensor.device.type == "cpu"
    )


def _plain(memory: Any, number: int, shape: tuple[int, ...]) -> Tensor:
    flat = torch.frombuffer(memory, dtype=_DTYPES[number])
    return flat if len(shape) == 1 else flat.view(shape)


def _is_dense(tensor: Tensor) -> bool:
    """Return whether its elements are in its own memory; sparse, quantized, nested, meta and wrapping ones are not."""
    wrapping = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return tensor.layout is torch.strided and not (
        tensor.is_meta or tensor.is_quantized or tensor.is_nested or wrapping
    )


def _extent(tensor: Tensor) -> int:
    """Return the number of elements from the first to the last one in memory."""
    if tensor.numel() == 0:
        return 0
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return 1 + last


def _tensor(
    memory: Any,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    kind: type[Tensor],
    requires_grad: bool,
    attributes: dict[str, Any] | None,
) -> Tensor:
    flat = torch.frombuffer(memory, dtype=dtype) if len(memory) else torch.empty(0, dtype=dtype)
    tensor = flat.as_strided(shape, stride)
    if kind is not Tensor:
        tensor = tensor.as_subclass(kind)
    if requires_grad:
        tensor.requires_grad_()
    if attributes:
        tensor.__dict__.update(attributes)
    return tensor


def _reduced_array(array: np.ndarray) -> Any:
    """Reduce an array that is not contiguous to a contiguous one with its axes in the order of their strides."""
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return np.transpose, (np.ascontiguousarray(array.transpose(axes)), [axes.index(k) for k in range(array.ndim)])


def _reduced_picture(image: Image.Image) -> Any:
    image.load()
    palette = image.palette and (image.palette.mode, image.im.getpalette(image.palette.mode, image.palette.mode))
    pixels = pickle.PickleBuffer(image.tobytes())
    return _picture, (pixels, image.mode, image.size, palette, image.info)


def _picture(
    pixels: Any, mode: str, size: tuple[int, int], palette: tuple[str, bytes] | None, info: dict[Any, Any]
) -> Image.Image:
    from PIL import Image

    image = Image.frombytes(mode, size, pixels) if all(size) else Image.new(mode, size)
    image.info = info
    if palette:
        image.putpalette(palette[1], palette[0])
    return image
