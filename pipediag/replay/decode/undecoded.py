"""Open JPEGs without decoding them, so that their bytes can travel to the device instead of their pixels.

Inside :func:`undecoded_pictures`, ``PIL.Image.open`` returns an undecoded picture for a JPEG that the device decodes as
Pillow does; inside :func:`undecoded_tensors`, ``torchvision.io``'s ``decode_jpeg``, ``decode_image`` and ``read_image``
return an undecoded tensor. Size, mode and metadata are known from the header. Code that needs pixels decodes them
first, so user code sees a usual picture or tensor. Any other file is opened and decoded as before.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from threading import get_ident
from typing import Any

import PIL.Image
import torch
from PIL import ImageOps
from PIL.ExifTags import Base
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torchvision import tv_tensors
from torchvision.io import ImageReadMode

from ...patches import replaced
from ..ops.op import NotRecordable
from ..storage import kept
from .jpeg_header import Jpeg, decodable


class Undecoded:
    """Image whose pixels no code has needed yet. The first code that needs them turns it into a usual image."""

    encoded: Jpeg  # its file
    height: int
    width: int

    @property
    def untouched(self) -> bool:
        """Whether the image that it shares its pixels with, if any, is still undecoded too."""
        return True


def is_undecoded(value: Any) -> bool:
    return isinstance(value, Undecoded) and value.untouched


# ---- pictures


class _Picture(Undecoded, PIL.Image.Image):
    @cached_property
    def lasting(self) -> UndecodedPicture:
        """The same picture, which user code cannot close, decode or write into."""
        return self.copy()

    def copy(self) -> UndecodedPicture:
        twin = UndecodedPicture()
        twin.__dict__.update(_mode=self.mode, _size=self.size, info=self.info.copy(), encoded=self.encoded)
        return twin

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if mode in (None, self.mode) and not args and not kwargs:
            return self.copy()
        self.load()
        return self.convert(mode, *args, **kwargs)

    def __deepcopy__(self, memo: Any) -> UndecodedPicture:
        return self.copy()

    def __eq__(self, other: object) -> bool:
        self.load()
        if isinstance(other, _Picture):
            other.load()
        return bool(self == other)

    __hash__ = None  # type: ignore[assignment]  # as any picture

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.load()
        return self.__reduce_ex__(protocol)


class UndecodedPicture(_Picture):
    """Picture that is no longer bound to its file, such as a converted one."""

    def load(self) -> Any:
        with PIL.Image.open(io.BytesIO(self.encoded.data)) as again:
            again.load()
            core = again.im
        _turned(self, PIL.Image.Image).im = core
        return self.load()

    def close(self) -> None:
        _turned(self, PIL.Image.Image).close()


class UndecodedFile(_Picture, JpegImageFile):
    """Picture that ``PIL.Image.open`` returned."""

    def load(self) -> Any:
        return _opened(self).load()

    def draft(self, mode: Any, size: Any) -> Any:
        """Choose another size to decode to, which the device does not know."""
        return _opened(self).draft(mode, size)

    def verify(self) -> None:
        _opened(self).verify()

    def close(self) -> None:
        _opened(self).close()

    def __exit__(self, *args: Any) -> None:
        _opened(self).__exit__(*args)


def _opened(picture: Any) -> Any:
    """Turn the picture into the one that Pillow opened, unless it is that already; return it."""
    return _turned(picture, JpegImageFile) if type(picture) is UndecodedFile else picture


def _turned(picture: Any, cls: type) -> Any:
    """Turn an undecoded picture into a usual one of type ``cls``; return it."""
    picture.__class__ = cls
    for name in ("encoded", "lasting"):
        picture.__dict__.pop(name, None)
    return picture


@contextmanager
def undecoded_pictures() -> Iterator[None]:
    """Let ``PIL.Image.open`` return JPEGs undecoded inside the context, in the calling thread.

    ``ImageOps.exif_transpose`` leaves those undecoded that it does not turn.
    """
    turning = replaced(ImageOps, "exif_transpose", _turning(ImageOps.exif_transpose))
    with replaced(PIL.Image, "open", _opening(PIL.Image.open)), turning:
        yield


def _opening(original: Callable[..., Any]) -> Callable[..., Any]:
    thread = get_ident()

    def open(*args: Any, **kwargs: Any) -> Any:
        picture = original(*args, **kwargs)
        usual = get_ident() == thread and type(picture) is JpegImageFile
        if usual and picture.mode == "RGB" and picture.fp is not None:
            file = picture.fp
            at = file.tell()
            file.seek(0)
            data = file.read()
            file.seek(at)
            encoded = decodable(data)
            if encoded is not None:
                if picture._exclusive_fp:  # Pillow closes it when it decodes the picture
                    file.close()
                    picture.fp = io.BytesIO(data)
                    picture.fp.seek(at)
                picture.__class__ = UndecodedFile
                picture.__dict__["encoded"] = encoded
        return picture

    return open


def _turning(original: Callable[..., Any]) -> Callable[..., Any]:
    def exif_transpose(image: Any, *, in_place: bool = False) -> Any:
        if is_undecoded(image) and image.getexif().get(Base.Orientation) not in range(2, 9):
            return None if in_place else image.copy()
        return original(image, in_place=in_place)

    return exif_transpose


# ---- tensors


class UndecodedTensor(Undecoded, torch.Tensor):  # type: ignore[misc]
    """Image ``(3, height, width)`` of dtype uint8. The first operation that needs pixels turns it into a tensor."""

    decodes_to: type = Tensor
    #: The same image, which user code cannot write into. It is decoded when this one is, so that no pixels are decoded
    #: twice.
    twin: UndecodedTensor | None = None
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

    def lasting(self) -> Any:
        """Return its twin."""
        self.twin = self.clone()
        return self.twin

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
        twin, pixels = value.twin, value._decode()
        torch.utils.swap_tensors(value, pixels.as_subclass(value.decodes_to))
        if isinstance(twin, UndecodedTensor):
            torch.utils.swap_tensors(twin, kept(pixels).as_subclass(twin.decodes_to))
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
