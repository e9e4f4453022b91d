"""Decoders that give arrays and tensors: OpenCV, and the operators behind ``torchvision.io``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .. import values
from ..keys import NoKey, content, digest, simple, tensor
from .by_path import by_path, version
from .call import OPENCV, TORCHVISION, Call, Remembering


def _of_tensor(name: str, memo: Remembering, plain: Callable[..., Any]) -> Callable[..., Any]:
    def key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return digest(name, version("torchvision"), tensor(args[0]), simple(args[1:]), simple(kwargs))

    def decode(*args: Any, **kwargs: Any) -> Any:
        call = partial(plain, *args, **kwargs)
        return memo.recall(TORCHVISION, partial(key, args, kwargs), call, values.pack, values.unpack)

    return decode


def _of_array(memo: Remembering, plain: Callable[..., Any]) -> Callable[..., Any]:
    def key(buf: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        if type(buf).__name__ != "ndarray" or str(buf.dtype) != "uint8":
            raise NoKey
        return digest("imdecode", version("cv2"), buf.shape, content(buf), simple(args), simple(kwargs))

    def imdecode(*args: Any, **kwargs: Any) -> Any:
        call = partial(plain, *args, **kwargs)
        return memo.recall(OPENCV, lambda: key(args[0], args[1:], kwargs), call, values.pack, values.unpack)

    return imdecode


_OPERATORS = ("decode_image", "decode_jpeg", "decode_png", "decode_webp")

CALLS = (
    by_path(OPENCV, "cv2", "imread"),
    Call("cv2", "", "imdecode", _of_array),
    *(Call("torchvision.io.image", "torch.ops.image", name, partial(_of_tensor, name)) for name in _OPERATORS),
)
