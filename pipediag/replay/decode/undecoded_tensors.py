"""Read JPEGs with torchvision without decoding them, so that their bytes can travel to the device instead.

Inside :func:`undecoded_tensors`, ``torchvision.io``'s ``decode_jpeg``, ``decode_image`` and ``read_image`` return an
undecoded tensor for a JPEG that the device decodes as the CPU does. Its shape and dtype are known. Code that needs
pixels decodes it first, so user code sees a usual tensor. Any other file is decoded as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torchvision import tv_tensors
from torchvision.io import ImageReadMode

from ...patches import replaced
from ..ops.op import NotRecordable
from .jpeg_header import Jpeg, decodable
from .undecoded import Undecoded, is_undecoded


class UndecodedTensor(Undecoded, torch.Tensor):  # type: ignore[misc]
    """Image ``(3, height, width)`` of dtype uint8. The first operation that needs pixels turns it into a tensor."""

    decodes_to: type = Tensor
    _decode: Callable[[], Tensor]

    @classmethod
    def of(cls, encoded: Jpeg, decode: Callable[[], Tensor]) -> Any:
        """Return the image of a file, which ``decode()`` decodes."""
        height, width = encoded.height, encoded.width
        strides = (1, 3 * width, 3)  # as torchvision's decoder leaves the pixels
        image: Any = Tensor._make_wrapper_subclass(cls, (3, height, width), strides=strides, dtype=torch.uint8)
        image.encoded, image.height, image.width, image._decode = encoded, height, width, decode
        return image

    def as_subclass(self, cls: type) -> Any:
        if cls is not tv_tensors.Image:
            return decoded(self).as_subclass(cls)
        image = UndecodedImage.of(self.encoded, partial(decoded, self))
        image.origin = self
        return image

    def clone(self, **kwargs: Any) -> Any:
        if kwargs:
            return decoded(self).clone(**kwargs)
        return self.of(self.encoded, self._decode)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WITHOUT_PIXELS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs or {})
        for image in tree_leaves((args, kwargs)):
            decoded(image)
        return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation that does not pass through the function above, such as a copy by ``torch.tensor``.

        Raises:
            NotRecordable: the operation writes into the image. Here the image cannot become a usual tensor.
        """
        if func._schema.is_mutable:
            raise NotRecordable(f"{func} writes into an undecoded image")
        args, kwargs = tree_map_only(UndecodedTensor, lambda image: image._decode(), (args, kwargs or {}))
        return func(*args, **kwargs)


class UndecodedImage(UndecodedTensor, tv_tensors.Image):  # type: ignore[misc]
    """``tv_tensors.Image`` that shares its pixels with an undecoded tensor, its ``origin``."""

    decodes_to = tv_tensors.Image
    origin: UndecodedTensor

    @property
    def untouched(self) -> bool:
        return is_undecoded(self.origin)

    def as_subclass(self, cls: type) -> Any:
        return decoded(self).as_subclass(cls)

    def clone(self, **kwargs: Any) -> Any:
        return self.origin.clone(**kwargs).as_subclass(tv_tensors.Image)


_WITHOUT_PIXELS = frozenset(
    {
        getattr(Tensor, name)
        for name in ("size", "stride", "dim", "numel", "__len__", "is_contiguous", "is_floating_point")
    }
    | {getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "is_cpu", "requires_grad")}
    | {torch.is_tensor, torch.is_floating_point, Tensor.requires_grad_}
)


def decoded(value: Any) -> Any:
    """Turn an undecoded tensor into the one that torchvision would have returned; return any other value as it is."""
    if isinstance(value, UndecodedTensor):
        torch.utils.swap_tensors(value, value._decode().as_subclass(value.decodes_to))
    return value


@contextmanager
def undecoded_tensors() -> Iterator[None]:
    """Let torchvision's decoders return JPEGs undecoded inside the context, in the calling thread.

    They look up the operators replaced here at each call, so it does not matter how a script has imported them.
    """
    with ExitStack() as undo:
        for name in ("decode_jpeg", "decode_image"):
            if hasattr(torch.ops.image, name):  # torchvision may be built without it
                undo.enter_context(replaced(torch.ops.image, name, _decoding(getattr(torch.ops.image, name))))
        yield


_MODES = (ImageReadMode.UNCHANGED.value, ImageReadMode.RGB.value)


def _decoding(original: Callable[..., Any]) -> Callable[..., Any]:
    thread = get_ident()

    def decode(data: Any, mode: int = ImageReadMode.UNCHANGED.value, apply_exif_orientation: bool = False) -> Any:
        usual = type(data) is Tensor and data.is_cpu and data.dtype == torch.uint8 and data.ndim == 1
        if get_ident() == thread and usual and mode in _MODES and not apply_exif_orientation:
            encoded = decodable(data.numpy().tobytes())
            if encoded is not None:
                file = encoded.data
                return UndecodedTensor.of(
                    encoded, lambda: original(torch.frombuffer(bytearray(file), dtype=torch.uint8), mode)
                )
        return original(data, mode, apply_exif_orientation)

    return decode
