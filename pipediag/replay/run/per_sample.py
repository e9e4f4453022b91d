"""Apply a torchvision transform to a batch on the device, with separate draws for every sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..ops.op import NotRecordable
from ..ops.triton import available
from ..pack.packing import pack_ops
from ..record.hooks import recording
from ..record.images import RecordingStack
from ..record.recorder import Recorder
from ..record.substitutes import is_recording, stand_in
from .replay import replay_on


class PerSample(nn.Module):  # type: ignore[misc]
    """Module that applies a transform to a batch ``(N, C, H, W)`` as if to each image separately.

    torchvision's transforms accept a batch, but draw once for all of it. Here the transform draws for each image on its
    own, on the CPU and in the order of the batch. The pixels are transformed for the whole batch at once:

        augment = PerSample(v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.GaussianBlur(9)]))
        images = augment(images)

    No gradient flows back to the input.

    Raises:
        NotRecordable: the transform needs pixels to decide what it does, or calls a function without a batched kernel.
        ValueError: the input is not a batch of images, or the results have different sizes.
    """

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4:
            raise ValueError(f"a batch of images has the shape (N, C, H, W), not {tuple(images.shape)}")
        if not len(images):
            return images
        recorder = Recorder(self.transform, 0)
        like = stand_in(torch.empty((), dtype=images.dtype).expand(images.shape[1:]))
        like.tape.state = like.tape.state._replace(strided=not images[0].is_contiguous())
        try:
            with recording():
                made = [recorder(like) for _ in range(len(images))]
        except NotRecordable as error:
            if error.__cause__ is not None:  # the library refuses the call
                raise error.__cause__ from None
            raise
        if not all(is_recording(one) and not isinstance(one, RecordingStack) for one in made):
            raise NotRecordable("the transform gives something else than one image")
        if len({(tuple(one.shape), one.dtype) for one in made}) > 1:
            raise ValueError("the transform gives images of different sizes: end it with a crop or a resizing")
        packed = pack_ops(
            [one.tape.track() for one in made], tuple(images.shape[1:]), images.dtype, available(images.device)
        )
        if images.is_cuda:
            packed = packed.pin_memory()
        return replay_on(packed, images)
