"""Turn results into bytes and back: arrays, tensors, pictures, simple values, and tuples, lists and dicts of them.

What comes back is new and writable, and equal in type, dtype, shape and strides. What cannot come back equal is
refused.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ..usercode.attributes import is_exactly
from .arena import Entry, Space
from .lent import pixels_of, with_pixels

_SIMPLE = (int, float, complex, str, bytes, bool, type(None))
_ALIGNED = 64
_DEPTH = 6

#: A description that marshal can write, and flat buffers of bytes, or the room in which the result was made.
Packed = tuple[Any, list[Any] | Space]


class Unfit(Exception):
    """Error: a result cannot be stored so that it comes back equal."""


def pack(value: Any, given: Any = ()) -> Packed:
    """Return the value's description and its bytes, which are valid while the value is.

    ``given`` are the arguments of the call that made it.

    Raises:
        Unfit: it cannot come back equal. It may be an argument, or share memory with one: who writes into it writes
            into the other too.
    """
    packing = _Packing()
    packing.be_apart_from(given)
    return packing.of(value, _DEPTH), packing.parts


def copies_of(value: Any) -> tuple[int, Callable[[], Any]]:
    """Return a value's bytes, and a function that returns a new copy of it at each call.

    Raises:
        Unfit: no copy would be equal.
    """
    head, parts = pack(value)
    assert isinstance(parts, list), "the value has no room of its own"
    body = memoryview(b"".join(parts))
    return len(body), partial(_unpacked, head, body)


def unpack(entry: Entry) -> Any:
    """Return a new value."""
    return _unpacked(entry.head, entry.body)


class _Packing:
    def __init__(self) -> None:
        self.parts: list[Any] = []
        self._size = 0
        self._seen: set[int] = set()
        self._memory: list[tuple[int, int]] = []

    def be_apart_from(self, value: Any) -> None:
        if isinstance(value, (tuple, list, dict)):
            for item in value.values() if isinstance(value, dict) else value:
                self.be_apart_from(item)
        if hasattr(value, "__array_interface__"):
            first = value.__array_interface__["data"][0]
            spans = [stride * (side - 1) for stride, side in zip(value.strides, value.shape, strict=True) if side]
            begin, end = first + sum(min(0, span) for span in spans), first + sum(max(0, span) for span in spans)
            self._memory.append((begin, end + value.itemsize))
        elif hasattr(value, "untyped_storage"):
            storage = value.untyped_storage()
            self._memory.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        if not isinstance(value, tuple):
            self._seen.add(id(value))

    def of(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if is_exactly(value, *_SIMPLE):
            return "=", value
        if id(value) in self._seen or depth == 0:
            raise Unfit  # the same object twice
        self._seen.add(id(value))
        if is_exactly(value, tuple, list):
            return kind.__name__, [self.of(item, depth - 1) for item in value]
        if kind is dict:
            return "dict", [(self.of(key, 1), self.of(item, depth - 1)) for key, item in value.items()]
        module = sys.modules.get(kind.__module__.partition(".")[0])
        name = getattr(module, "__name__", "")
        if name == "numpy":
            return self._numpy(module, value)
        if name == "torch" and kind.__name__ == "Tensor":
            return self._tensor(value)
        if name == "PIL" and kind.__name__ == "Image":
            return self._picture(value)
        raise Unfit

    def _numpy(self, np: Any, value: Any) -> Any:
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            raise Unfit
        dtype = value.dtype
        if dtype.hasobject or dtype.fields is not None or dtype.metadata is not None or np.dtype(dtype.str) != dtype:
            raise Unfit
        if isinstance(value, np.generic):
            if type(value) is not dtype.type:
                raise Unfit
            return "scalar", dtype.str, value.tobytes()
        flags = value.flags
        if not flags.writeable or not flags.aligned or not (flags.c_contiguous or flags.f_contiguous):
            raise Unfit
        order: Any = "C" if flags.c_contiguous else "F"
        if value.strides != np.empty(value.shape, dtype, order).strides:  # a side of length 1 or 0 may have any
            raise Unfit
        flat = value.reshape(-1, order=order)
        begin = value.__array_interface__["data"][0]
        where = self._put(flat.view(np.uint8) if flat.size else b"", begin, value.nbytes)
        kind = "array" if flags.owndata else "view"  # numpy resizes only the former in place
        return kind, dtype.str, value.shape, order, where

    def _tensor(self, value: Any) -> Any:
        import torch

        odd = value.requires_grad or value.is_conj() or value.is_neg() or value.device.type != "cpu"
        if odd or value.layout != torch.strided or not _is_dense(value):
            raise Unfit
        nbytes = value.numel() * value.element_size()
        where = self._put(_memory(value, nbytes), value.data_ptr(), nbytes)
        return "tensor", str(value.dtype).removeprefix("torch."), tuple(value.shape), value.stride(), where

    def _picture(self, value: Any) -> Any:
        data = pixels_of(value)
        if (
            data is None
            or value.palette is not None
            or vars(value).get("_readonly", vars(value).get("readonly"))
            or set(vars(value)) - _OF_PICTURES
        ):
            raise Unfit
        if value._exif is not None:
            raise Unfit
        return "picture", value.mode, value.size, self.of(value.info, 2), self._put(data, id(data), 0)

    def _put(self, data: Any, begin: int, nbytes: int) -> tuple[int, int]:
        """Take a buffer; return its place in the body."""
        if any(begin < end and other < begin + nbytes for other, end in self._memory):
            raise Unfit  # two results that share memory
        self._memory.append((begin, begin + nbytes))
        at, size = self._size, len(data)
        padding = -size % _ALIGNED
        self.parts += [data, bytes(padding)] if padding else [data]
        self._size += size + padding
        return at, size


#: Attributes of a picture that has nothing beyond pixels, mode, size and ``info``.
_OF_PICTURES = {"_im", "_mode", "_size", "palette", "info", "readonly", "_readonly", "_exif"}


def _unpacked(head: Any, body: memoryview) -> Any:
    return _UNPACKED[head[0]](body, *head[1:])


def _array(body: memoryview, dtype: str, shape: tuple[int, ...], order: Any, where: tuple[int, int]) -> Any:
    import numpy as np

    # A private mapping, of which the kernel copies what is written to, takes longer: the page faults of 512 KB cost
    # 0.12 ms if they are read and 1.1 ms if they are changed; the copy takes 0.03 ms.
    out: Any = np.empty(shape, dtype, order)
    out[...] = np.ndarray(shape, dtype, _cut(body, where), order=order)
    return out


def _view(body: memoryview, *form: Any) -> Any:
    return _array(body, *form)[...]


def _scalar(body: memoryview, dtype: str, data: bytes) -> Any:
    import numpy as np

    return np.frombuffer(data, dtype)[0]


def _tensor(body: memoryview, dtype: str, shape: Any, strides: Any, where: tuple[int, int]) -> Any:
    import torch

    out = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device="cpu")  # whatever the default is
    _memory(out, where[1])[:] = _cut(body, where)
    return out


def _picture(body: memoryview, mode: str, size: tuple[int, int], info: Any, where: tuple[int, int]) -> Any:
    from PIL import Image

    out = Image.Image()._new(with_pixels(mode, size, _cut(body, where)))
    out.info = _unpacked(info, body)
    return out


_UNPACKED: dict[str, Callable[..., Any]] = {
    "=": lambda body, value: value,
    "tuple": lambda body, items: tuple(_unpacked(item, body) for item in items),
    "list": lambda body, items: [_unpacked(item, body) for item in items],
    "dict": lambda body, items: {_unpacked(key, body): _unpacked(item, body) for key, item in items},
    "array": _array,
    "view": _view,
    "scalar": _scalar,
    "tensor": _tensor,
    "picture": _picture,
}


def _cut(body: memoryview, where: tuple[int, int]) -> memoryview:
    return body[where[0] : where[0] + where[1]]


def _memory(tensor: Any, nbytes: int) -> memoryview:
    """Return the memory of a tensor, which lives as long."""
    if not nbytes:
        return memoryview(bytearray())
    memory: Any = (ctypes.c_ubyte * nbytes).from_address(tensor.data_ptr())
    memory.owner = tensor
    return memoryview(memory).cast("B")


def _is_dense(tensor: Any) -> bool:
    """Return whether the elements fill a block of memory without a hole, in any order of dimensions."""
    expected = 1
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in dims if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True
