"""Decode the JPEGs of a batch into the batch's own memory on the device.

The GPU's JPEG engines decode them. The CPU decodes files that they do not know, as the worker would have done.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch
from torch import Tensor
from torchvision.io import ImageReadMode

from ..ops.triton import available
from .nvjpeg import CannotDecode, Decoder, Table

#: Bytes to which the memory of a batch on the device is rounded up.
_ROUNDED = 1 << 25
_ALIGNED = 16


class Files(NamedTuple):
    """JPEGs that the device decodes, sent as files. Their pixels fill a gap in the batch's memory there."""

    begin: int  # offset of the gap, in bytes
    nbytes: int  # size of the gap, which is not sent: offsets after it are smaller by this in the memory that is sent
    #: ``(N, 7)``, int64: for each file its offset in the sent memory, its size, the offset, height and width of its
    #: pixels ``(height, width, 3)``, its sampling (:class:`.jpeg_header.Jpeg`), and 1 if the user's code read it with
    #: torchvision, 0 if with Pillow.
    rows: Table


def why_not(device: torch.device) -> str:
    """Return why a device cannot decode JPEGs; empty if it can."""
    if device.type != "cuda":
        return f"the device {device.type} has no JPEG engine"
    if not available(device):
        return "it needs triton and a GPU of compute capability 7.0 or later"
    try:
        with torch.cuda.device(device):
            _decoder(torch.cuda.current_stream(device))
    except CannotDecode as error:
        return f"the GPU decodes no JPEGs: {error}"
    return ""


def with_pixels(memory: Tensor, files: Files, device: torch.device, on_cpu: bool = False) -> Tensor:
    """Return a batch's memory on ``device``, with the pixels of its files in their gap.

    With ``on_cpu`` the user's own decoder makes them all. The work runs on the current stream; until it is done, a slot
    of a ring that holds ``memory`` must not be reused.

    Raises:
        OSError, RuntimeError: Pillow or torchvision cannot decode a file either.
    """
    if device.type == "cuda":
        memory = memory.pin_memory()  # itself if it is pinned; torch keeps it until the stream has read it
    end = files.begin + files.nbytes
    total = memory.numel() + files.nbytes
    whole = _empty(total, device)
    whole[: files.begin].copy_(memory[: files.begin], non_blocking=True)
    whole[end:].copy_(memory[files.begin :], non_blocking=True)
    left = files.rows
    if device.type == "cuda" and not on_cpu:
        with torch.cuda.device(device):
            left = left[~_decode(memory, left, whole)]
    data = memory.numpy()
    for begin, nbytes, at, *_, decoder in left.tolist():
        pixels = _DECODERS[decoder](data[begin : begin + nbytes].copy())
        whole[at : at + pixels.numel()].copy_(pixels.view(-1))
    return whole


def _decode(memory: Tensor, rows: Table, whole: Tensor) -> npt.NDArray[np.bool_]:
    """Decode files in ``memory`` to their places in ``whole``, on its device; return which of them it can decode."""
    from ..ops.triton.jpeg_colours import to_rgb

    sizes, sampling = rows[:, 3:5], rows[:, 5:6]
    per_chroma = np.concatenate([sampling & 15, sampling >> 4], 1)  # rows and columns
    chroma = -(-sizes // per_chroma)
    planes = np.stack([sizes, chroma, chroma], 1)  # (N, 3, 2)
    areas = -(-planes.prod(2) // _ALIGNED) * _ALIGNED
    begins = (areas.cumsum() - areas.ravel()).reshape(areas.shape)
    memory_of_planes = _empty(int(areas.sum()), whole.device)
    files = np.concatenate([rows[:, :2], begins, planes[:, :, 1]], 1)
    files += np.array([memory.data_ptr(), 0, *[memory_of_planes.data_ptr()] * 3, 0, 0, 0])
    known = _decoder(torch.cuda.current_stream()).decode(files)
    table = torch.from_numpy(np.concatenate([begins, rows[:, 2:6]], 1)).pin_memory().to(whole.device, non_blocking=True)
    to_rgb(memory_of_planes, table, whole, int(sizes.prod(1).max()))  # also for planes that nobody has written
    return known


def _empty(nbytes: int, device: torch.device) -> Tensor:
    """Return memory of a rounded size, which torch's allocator can reuse for a batch of a slightly different size."""
    return torch.empty(-(-nbytes // _ROUNDED) * _ROUNDED, dtype=torch.uint8, device=device)[:nbytes]


def both_ways(memory: Tensor, files: Files, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the pixels of each file as the device and as the user's decoder decode them, both on ``device``."""
    ours, users = (with_pixels(memory, files, device, on_cpu) for on_cpu in (False, True))
    for _, _, at, height, width, *_ in files.rows.tolist():
        pixels = slice(at, at + 3 * height * width)
        yield ours[pixels], users[pixels]


def _by_pillow(data: npt.NDArray[np.uint8]) -> Tensor:
    with PIL.Image.open(io.BytesIO(data)) as picture:
        return torch.from_numpy(np.array(picture))


def _by_torchvision(data: npt.NDArray[np.uint8]) -> Tensor:
    pixels: Tensor = torch.ops.image.decode_jpeg(torch.from_numpy(data), ImageReadMode.RGB.value)
    return pixels.permute(1, 2, 0).contiguous()


_DECODERS = (_by_pillow, _by_torchvision)


@lru_cache(maxsize=8)
def _decoder(stream: torch.cuda.Stream) -> Decoder:
    return Decoder(stream)
