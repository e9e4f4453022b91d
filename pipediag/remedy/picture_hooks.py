"""Replace Pillow's functions and enhancers that read pixels themselves, so that they record on recording pictures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from PIL import ImageEnhance, ImageOps
from torchvision.transforms import _functional_pil as by_torchvision

from .images import is_recording
from .ops import NotRecordable
from .picture_ops import IMAGE_OPS, adjusted
from .pictures import recorded

#: Pillow's enhancers, and what torchvision's function that calls each adjusts.
_ENHANCERS: dict[type, str] = {
    ImageEnhance.Brightness: "brightness",
    ImageEnhance.Contrast: "contrast",
    ImageEnhance.Color: "saturation",
    ImageEnhance.Sharpness: "sharpness",
}


def image_ops() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield owner and name of each function of ``PIL.ImageOps``, and what records it on a recording picture."""
    for name, encode in IMAGE_OPS.items():
        yield ImageOps, name, recorded(encode, getattr(ImageOps, name))
    yield ImageOps, "pad", _pad


def enhancers() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield owner, name and replacement of each method; with other images it calls the original."""
    for enhancer in _ENHANCERS:
        yield enhancer, "__init__", _begun(vars(enhancer)["__init__"])
    yield ImageEnhance._Enhance, "enhance", _enhanced(ImageEnhance._Enhance.enhance)


def _pad(image: Any, size: Any, method: int = 3, color: Any = None, centering: Any = (0.5, 0.5)) -> Any:
    """Record ``ImageOps.pad`` as the resizing and the border that it makes; it pastes one picture into another."""
    made = ImageOps.contain(image, size, method)
    if not is_recording(made):
        raise NotRecordable("a picture is resized to nothing")
    across, down = size[0] - made.width, size[1] - made.height
    left, top = (round(free * max(0, min(share, 1))) for free, share in zip((across, down), centering, strict=True))
    return ImageOps.expand(made, (left, top, across - left, down - top), color)


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
        what = _ENHANCERS.get(type(self))
        if what is None:
            raise NotRecordable(f"{type(self).__name__} is not one of Pillow's own enhancers")
        adjust = getattr(by_torchvision, f"adjust_{what}")
        return recorded(functools.partial(adjusted, what), adjust)(self.image, factor)

    return enhance
