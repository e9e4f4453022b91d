"""Replace Pillow's functions and enhancers that read pixels themselves, so that they record on recording pictures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from PIL import ImageEnhance, ImageOps
from torchvision.transforms import _functional_pil as by_torchvision

from .images import is_recording, record
from .ops import NotRecordable, Op
from .picture_ops import IMAGE_OPS
from .pictures import RecordingPicture

#: Pillow's enhancers, and the function of torchvision that calls each.
_ENHANCERS: dict[type, str] = {
    ImageEnhance.Brightness: "adjust_brightness",
    ImageEnhance.Contrast: "adjust_contrast",
    ImageEnhance.Color: "adjust_saturation",
    ImageEnhance.Sharpness: "adjust_sharpness",
}


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield owner, name and replacement of each; other images are passed to the original."""
    for name, encode in IMAGE_OPS.items():
        yield ImageOps, name, _image_op(getattr(ImageOps, name), encode)
    yield ImageOps, "pad", _padded(ImageOps.pad)
    for enhancer in _ENHANCERS:
        yield enhancer, "__init__", _begun(vars(enhancer)["__init__"])
    yield ImageEnhance._Enhance, "enhance", _enhanced(ImageEnhance._Enhance.enhance)


def _image_op(original: Callable[..., Any], encode: Callable[..., list[Op]]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(image: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_recording(image):
            return original(image, *args, **kwargs)
        tape = image.tape
        return RecordingPicture.of(tape.then(encode(tape.state, *args, **kwargs), original, args, kwargs))

    return call


def _padded(original: Callable[..., Any]) -> Callable[..., Any]:
    """Record ``ImageOps.pad`` as the resizing and the border that it makes; it pastes one picture into another."""

    @functools.wraps(original)
    def pad(
        image: Any, size: Any, method: int = 3, color: Any = None, centering: tuple[float, float] = (0.5, 0.5)
    ) -> Any:
        if not is_recording(image):
            return original(image, size, method, color, centering)
        made = ImageOps.contain(image, size, method)
        if not is_recording(made):
            raise NotRecordable("a picture is resized to nothing")
        across, down = size[0] - made.width, size[1] - made.height
        left, top = (round(free * max(0, min(share, 1))) for free, share in zip((across, down), centering, strict=True))
        return ImageOps.expand(made, (left, top, across - left, down - top), color)

    return pad


def _begun(original: Callable[..., None]) -> Callable[..., None]:
    """Keep only the picture in an enhancer; the image that it is blended with would need pixels."""

    @functools.wraps(original)
    def begin(self: Any, image: Any) -> None:
        if is_recording(image):
            self.image = image
        else:
            original(self, image)

    return begin


def _enhanced(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def enhance(self: Any, factor: float) -> Any:
        if not is_recording(self.image):
            return original(self, factor)
        name = _ENHANCERS.get(type(self))
        if name is None:
            raise NotRecordable(f"{type(self).__name__} is not one of Pillow's own enhancers")
        return record(self.image, name, getattr(by_torchvision, name), (factor,), {})

    return enhance
