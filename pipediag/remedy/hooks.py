"""Hook functional calls: through torchvision's dispatcher, and by patching the functions that bypass it.

The dispatcher gets kernels for types of our own, permanently. The other functions are patched during a recording. They
handle all other images as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from PIL import ImageOps
from torch import Tensor
from torch.utils.data._utils.collate import default_collate, default_collate_fn_map
from torchvision import tv_tensors
from torchvision.transforms import functional as older
from torchvision.transforms.v2 import _augment, _auto_augment, _geometry, _misc
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2.functional import _utils as dispatch

from ..patches import live
from .encoders import ENCODERS, OLDER, SEVERAL, convert_image_dtype
from .images import (
    IN_PLACE,
    TENSORS,
    RecordingImage,
    RecordingMask,
    RecordingStack,
    RecordingTensor,
    is_recording,
    record,
)
from .ops import NotRecordable
from .picture_ops import FUNCTIONS
from .pictures import RecordingPicture, enhancers, image_ops, recorded
from .tape import session

_Function = Callable[..., Any]

#: Replacements for torchvision's functions that read metadata only.
_META = {
    "get_size": lambda image: list(image.tape.state.size),
    "get_dimensions": lambda image: [image.tape.state.channels, *image.tape.state.size],
    "get_num_channels": lambda image: image.tape.state.channels,
}


def _kernel(name: str) -> _Function:
    functional = getattr(F, name)

    return lambda image, *args, **kwargs: record(image, name, functional, args, kwargs)


def _collate(images: list[Any], *, collate_fn_map: Any = None) -> Any:
    if not session.active:  # recording images that user code has kept
        return default_collate([image.pixels() if is_recording(image) else image for image in images])
    return RecordingStack.made_of(images)


@functools.cache
def register() -> None:
    """Register recording images with torchvision's dispatcher and torch's collate, in this process, permanently.

    This only adds entries for types of our own: it changes no other call.
    """
    registry = dispatch._KERNEL_REGISTRY
    for kind in (*TENSORS, RecordingStack):
        default_collate_fn_map[kind] = _collate
    for name in (*ENCODERS, *SEVERAL):
        functional: Any = getattr(F, name, None)
        if functional not in registry:  # not in this version of torchvision
            continue
        known, kernel = registry[functional], _kernel(name)
        if name in FUNCTIONS:
            known[RecordingPicture] = recorded(FUNCTIONS[name], functional)
        for cls in TENSORS:
            # Record a mask if torchvision has a kernel for masks; otherwise let it pass through as torchvision does.
            if any(base in known for base in _dispatched(cls)):
                known[cls] = kernel
    for name, answer in _META.items():
        for cls in TENSORS:
            registry[getattr(F, name)][cls] = answer


def _dispatched(cls: type) -> Iterator[type]:
    """Yield the types whose kernels torchvision would use for a ``cls``."""
    for base in cls.__mro__:
        if base is tv_tensors.TVTensor:
            return
        yield base


def _to_tensor(picture: Any) -> Any:
    """Record ``to_tensor``: channels first, floats between 0 and 1."""
    tape = picture.tape
    ops = convert_image_dtype(tape.state, torch.get_default_dtype())
    return RecordingTensor.of(tape.then(ops, _ORIGINAL["to_tensor"]))


def _pil_to_tensor(picture: Any) -> Any:
    return RecordingTensor.of(picture.tape.then([], _ORIGINAL["pil_to_tensor"]))


def _to_image(image: Any) -> Any:
    return RecordingImage.of(image.tape.then([], _ORIGINAL["to_image"]))


_ORIGINAL = {name: getattr(older, name) for name in ("to_tensor", "pil_to_tensor", "convert_image_dtype")}
_ORIGINAL["to_image"] = F.to_image


def _to_picture(*args: Any, **kwargs: Any) -> NoReturn:
    raise NotRecordable("an image is turned into a picture")


def _older(name: str) -> _Function:
    original = getattr(older, name)

    def call(image: Any, *args: Any, **kwargs: Any) -> Any:
        if name not in IN_PLACE and isinstance(image, (RecordingImage, RecordingMask)):
            # These functions know plain tensors only, and return one unless they return the image itself.
            made = record(image.as_subclass(Tensor), OLDER[name], original, args, kwargs, fixed=False)
            same = made.tape.state == image.tape.state._replace(mask=False) and made.tape.ops == image.tape.ops
            return image if same else made
        return record(image, OLDER[name], original, args, kwargs, fixed=False)

    return call


def _convert_image_dtype(image: Any, dtype: torch.dtype = torch.float) -> Any:
    ops = convert_image_dtype(image.tape.state, dtype)
    plain = ops and isinstance(image, (RecordingImage, RecordingMask))
    image = image.as_subclass(Tensor) if plain else image
    return image.of(image.tape.then(ops, _ORIGINAL["convert_image_dtype"], (dtype,)))


def _patches() -> Iterator[tuple[Any, str, _Function | None, _Function | None]]:
    """Yield owner and name of each function outside the dispatcher, and the functions that record it on tensors and on
    pictures; None if it handles them itself."""
    for name in OLDER:
        if hasattr(older, name):
            encode = None if name in IN_PLACE else FUNCTIONS.get(OLDER[name])  # those in place take tensors only
            yield older, name, _older(name), encode and recorded(encode, getattr(older, name))
    yield older, "convert_image_dtype", _convert_image_dtype, None
    yield older, "get_dimensions", _META["get_dimensions"], None
    yield older, "get_image_num_channels", _META["get_num_channels"], None
    yield older, "get_image_size", lambda image: list(image.tape.state.size[::-1]), None
    for module in (older, F):
        yield module, "to_tensor", None, _to_tensor
        yield module, "pil_to_tensor", None, _pil_to_tensor
        yield module, "to_pil_image", _to_picture, None
    yield F, "to_image", _to_image, _to_image
    for name, of_picture in image_ops().items():
        yield ImageOps, name, None, of_picture


def _guarded(original: _Function, of_tensor: _Function | None, of_picture: _Function | None) -> _Function:
    """Return the original with the other functions in its place for recording images."""
    functions: dict[type, _Function | None] = dict.fromkeys((*TENSORS, RecordingStack), of_tensor)
    functions[RecordingPicture] = of_picture

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        instead = functions.get(type(args[0])) if args else None
        return (instead or original)(*args, **kwargs)

    return call


def _stood_for(image: Any) -> Any:
    return getattr(image, "stands_for", image)


def _fill_of(original: _Function) -> _Function:
    """Look up fill values by the type that a recording image stands for; they are keyed by image type."""
    return lambda fills, image_type: original(fills, _stood_for(image_type))


def _dtype_of(original: _Function) -> _Function:
    """Look up the dtype of a ``ToDtype`` with a dtype per image type by the type that a recording image stands for."""

    @functools.wraps(original)
    def transform(self: Any, image: Any, params: Any) -> Any:
        if not is_recording(image) or not isinstance(self.dtype, dict):
            return original(self, image, params)
        if image.stands_for not in self.dtype and "others" not in self.dtype:
            raise NotRecordable(f"ToDtype knows no dtype for {image.stands_for.__name__}")
        dtype = self.dtype.get(image.stands_for, self.dtype.get("others"))
        return image if dtype is None else self._call_kernel(F.to_dtype, image, dtype=dtype, scale=self.scale)

    return transform


def _mixing(original: _Function, how: str, value: str) -> _Function:
    """Record MixUp or CutMix on a batch of recording images. Labels are mixed as before."""

    def transform(self: Any, batch: Any, params: Any) -> Any:
        if not isinstance(batch, RecordingStack):
            return original(self, batch, params)
        self._check_image_or_video(batch, batch_size=params["batch_size"])
        return batch.mixed(how, params[value])

    return transform


@functools.cache
def _replacements() -> list[tuple[Any, str, Any, Any]]:
    """Return owner, name, original and replacement of every patched function."""
    made = [(owner, name, _guarded(getattr(owner, name), *instead)) for owner, name, *instead in _patches()]
    made += [(module, "_get_fill", _fill_of(module._get_fill)) for module in (_geometry, _auto_augment)]
    made += enhancers()
    made.append((_misc.ToDtype, "transform", _dtype_of(_misc.ToDtype.transform)))
    made.append((_augment.MixUp, "transform", _mixing(_augment.MixUp.transform, "mixup", "lam")))
    made.append((_augment.CutMix, "transform", _mixing(_augment.CutMix.transform, "cutmix", "box")))
    return [(owner, name, getattr(owner, name), value) for owner, name, value in made]


@contextmanager
def recording(refused: frozenset[str] = frozenset(), copies: bool = False) -> Iterator[None]:
    """Make the functions of torchvision and Pillow record calls on recording images inside the context.

    Args:
        refused: names of functions that are not recorded.
        copies: whether to copy each image, for a dataset that overwrites it.
    """
    register()
    before = session.active
    session.active = True
    session.number += 1
    session.refused, session.copies = refused, copies
    with live("functions of torchvision and Pillow"):
        try:
            for owner, name, _, value in _replacements():
                setattr(owner, name, value)
            yield
        finally:
            session.active = before
            session.refused, session.copies = frozenset(), False
            for owner, name, original, _ in _replacements():
                setattr(owner, name, original)
