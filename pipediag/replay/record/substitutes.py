"""Put recording images in the place of real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import PIL.Image
import torch
from torch import Tensor
from torchvision import tv_tensors

from ..decode.undecoded import UndecodedTensor
from ..layout import copied
from ..ops.arguments import BANDS
from ..ops.op import State, state_of
from .images import STANDING_FOR, TENSORS, RecordingMask, RecordingStack, RecordingVideo, Unreadable
from .pictures import RecordingPicture, lasting
from .tape import Tape, session


def is_recording(value: Any) -> bool:
    return isinstance(value, (Unreadable, RecordingPicture))


def stand_in(value: Any) -> Any:
    """Return a recording image for a tensor ``(C, H, W)``, a mask ``(H, W)`` too, or a Pillow image; otherwise None."""
    if isinstance(value, PIL.Image.Image):
        if value.mode not in BANDS:
            return None
        state = State((BANDS[value.mode], value.height, value.width), torch.uint8)
        source = _seen(value, value.copy)
        session.stood += 1
        return RecordingPicture.of(Tape(value, state, lasting(value) if source is value else source))
    cls = next((cls for kind, cls in STANDING_FOR.items() if kind is type(value)), None)
    if cls is None or value.requires_grad or not value.is_cpu:
        return None
    shape = tuple(value.shape)
    if len(shape) not in cls.dimensions or 0 in shape:
        return None
    state = state_of((shape, value.dtype, cls is RecordingMask, not value.is_contiguous(), True))
    session.stood += 1
    twin = value.clone if isinstance(value, UndecodedTensor) else partial(copied, value)
    source = _seen(value, twin)
    if source is value and _is_written_unseen(value):
        source = twin()
    return cls.of(Tape(value, state, source))


def stand_in_for_stack(value: Any) -> Any:
    """Return a stack of recording images for the frames of a video or a batch ``(N, C, H, W)``; otherwise None."""
    video = type(value) is tv_tensors.Video
    if not (video or type(value) is Tensor) or value.ndim != 4 or value.requires_grad or not value.is_cpu:
        return None
    if 0 in value.shape or _is_written_unseen(value):
        return None
    stack = RecordingStack.made_of([stand_in(frame) for frame in value.as_subclass(Tensor)])
    stack.laid(value.stride())
    if not video:
        return stack
    return RecordingVideo._with(stack.parts, stack.tape.state.shape, stack.dtype, (), stack.memory_layout)


def stacked(parts: Sequence[Any]) -> Any:
    """Return the stack of images, some of which may be real, which shares no memory with them."""
    alike = (part.apart() if isinstance(part, Unreadable) else as_recorded(part) for part in parts)
    return RecordingStack.made_of([*alike])


def as_recorded(image: Any) -> Any:
    """Return what stands for a real image, as it is now, among recorded ones; anything else unchanged.

    Chance may leave a sample out of the only call by which its image would be recorded.
    """
    if not any(type(image) is cls.stands_for for cls in TENSORS):
        return image
    copy = copied(image)
    made = stand_in(copy)
    made = stand_in_for_stack(copy) if made is None else made
    return image if made is None else made


def _is_written_unseen(image: Tensor) -> bool:
    """Return whether writing counts no version: the memory may be an array's, or other processes', or the image was
    made in inference mode."""
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(image, UndecodedTensor):
            return False
        return image.is_inference() or not image.untyped_storage().resizable()


def _seen(value: Any, copied: Callable[[], Any]) -> Any:
    """Return the source for the tape: the value, or a copy if the dataset overwrites it."""
    if session.seen is not None:
        session.seen.append((value, copied()))
    return copied() if session.copies else value
