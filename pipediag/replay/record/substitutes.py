"""Put recording images in the place of real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import PIL.Image
import torch
from torch import Tensor
from torchvision import tv_tensors

from ..decode.undecoded import UndecodedTensor
from ..layout import copied
from ..ops.arguments import BANDS
from ..ops.op import State, state_of
from ..storage import kept
from .images import STANDING_FOR, TENSORS, RecordingMask, RecordingStack, RecordingVideo, Unreadable
from .memory import Memory
from .pictures import RecordingPicture, lasting
from .session import session
from .tape import Tape


def is_recording(value: Any) -> bool:
    return isinstance(value, (Unreadable, RecordingPicture))


def stand_in(value: Any) -> Any:
    """Return a recording image for a tensor ``(C, H, W)``, a mask ``(H, W)`` too, or a Pillow image; otherwise None.

    Code may write into the image later: what was recorded by then is made of a copy.
    """
    if isinstance(value, PIL.Image.Image):
        if value.mode not in BANDS:
            return None
        state = State((BANDS[value.mode], value.height, value.width), torch.uint8)
        session.stood += 1
        return RecordingPicture.of(Tape(value, state, lasting(value)))
    cls = next((cls for kind, cls in STANDING_FOR.items() if kind is type(value)), None)
    if cls is None or value.requires_grad or not value.is_cpu:
        return None
    shape = tuple(value.shape)
    if len(shape) not in cls.dimensions or 0 in shape:
        return None
    state = state_of((shape, value.dtype, cls is RecordingMask, not value.is_contiguous(), True))
    session.stood += 1
    return cls.of(Tape.of_users(value, state, _memory_of(value)))


def _memory_of(value: Tensor) -> Memory:
    """Return the memory of an image, with a copy of it: one for all recordings that begin with it as it is now."""
    known: Memory | None = session.given.get(id(value), (None, None))[1]
    if known is None or not known.is_as_it_was(0):
        source = value.lasting() if isinstance(value, UndecodedTensor) else kept(value)
        session.given[id(value)] = value, (known := Memory(source, given=value))
    return known


def stand_in_for_stack(value: Any) -> Any:
    """Return a stack of recording images for the frames of a video or a batch ``(N, C, H, W)``; otherwise None."""
    video = type(value) is tv_tensors.Video
    if not (video or type(value) is Tensor) or value.ndim != 4 or value.requires_grad or not value.is_cpu:
        return None
    if 0 in value.shape:
        return None
    stack = RecordingStack.made_of([stand_in(frame) for frame in value.as_subclass(Tensor)], value.stride())
    stack._lies_in(value)
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
    if not any(type(image) is cls.stands_for for cls in (*TENSORS, RecordingVideo)):
        return image
    copy = copied(image)
    made = stand_in(copy)
    made = stand_in_for_stack(copy) if made is None else made
    return image if made is None else made.apart()
