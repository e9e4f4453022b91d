"""Decode JPEGs with the GPU's own JPEG engines, through NVIDIA's nvJPEG library.

nvJPEG writes the pixels where the batch needs them, and takes a third of the host's time of the packages built on it.
With interpolated upsampling of chroma its pixels differ from Pillow's by one level at most.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch

from ..errors import PipediagError

_HARDWARE = 3  # NVJPEG_BACKEND_HARDWARE
_INTERPOLATED_CHROMA = 1 << 5  # NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION
_INTERLEAVED_RGB = 5  # NVJPEG_OUTPUT_RGBI
_CHANNELS = 4  # NVJPEG_MAX_COMPONENT


class File(NamedTuple):
    """JPEG in host memory, and where its pixels ``(height, width, 3)`` go on the device: addresses and sizes."""

    data: int
    nbytes: int
    pixels: int
    height: int
    width: int


class CannotDecode(PipediagError):
    """Error: the library is missing, the GPU has no JPEG engine, or the engine refuses a file."""


class _Image(ctypes.Structure):
    _fields_ = [("channel", ctypes.c_void_p * _CHANNELS), ("pitch", ctypes.c_size_t * _CHANNELS)]


class Decoder:
    """Decoder for one stream. The stream's device must be the current one.

    Raises:
        CannotDecode: the library is missing, or the GPU has no JPEG engine.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._library = _library(int((torch.version.cuda or "0").split(".")[0]))
        self._stream = ctypes.c_void_p(stream.cuda_stream)
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._files = 0
        self._turn = threading.Lock()  # torch gives one stream to several loaders
        self._call("nvjpegCreateEx", _HARDWARE, None, None, _INTERPOLATED_CHROMA, ctypes.byref(self._handle))
        self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))

    def decode(self, files: Sequence[File]) -> list[File]:
        """Launch the decoding on the stream, and return the files that the engine does not know.

        The host memory of the others must stay until the stream has done this work.
        """
        with self._turn:
            try:
                self._launch(files)
                return []
            except CannotDecode:
                known = [self._is_supported(file) for file in files]
                refused = [file for file, is_known in zip(files, known, strict=True) if not is_known]
                if not refused or len(refused) == len(files):
                    return list(files)
                try:
                    self._launch([file for file, is_known in zip(files, known, strict=True) if is_known])
                except CannotDecode:
                    return list(files)
                return refused

    def _launch(self, files: Sequence[File]) -> None:
        number = len(files)
        if number != self._files:
            self._files = 0
            self._call("nvjpegDecodeBatchedInitialize", self._handle, self._state, number, 1, _INTERLEAVED_RGB)
            self._files = number
        data = (ctypes.c_void_p * number)(*[file.data for file in files])
        sizes = (ctypes.c_size_t * number)(*[file.nbytes for file in files])
        images = (_Image * number)()
        for image, file in zip(images, files, strict=True):
            image.channel[0], image.pitch[0] = file.pixels, 3 * file.width
        self._call("nvjpegDecodeBatched", self._handle, self._state, data, sizes, images, self._stream)

    def _is_supported(self, file: File) -> bool:
        stream, supported = ctypes.c_void_p(), ctypes.c_int(1)
        self._call("nvjpegJpegStreamCreate", self._handle, ctypes.byref(stream))
        try:
            data, size = ctypes.c_void_p(file.data), ctypes.c_size_t(file.nbytes)
            self._call("nvjpegJpegStreamParse", self._handle, data, size, 0, 0, stream)
            self._call("nvjpegDecodeBatchedSupported", self._handle, stream, ctypes.byref(supported))
        except CannotDecode:
            return False
        finally:
            self._library.nvjpegJpegStreamDestroy(stream)
        return supported.value == 0  # the library's way: 0 means that it is

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._library, name)(*args)  # releases Python's lock meanwhile
        if status:
            raise CannotDecode(f"{name} returned status {status}")

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        if getattr(self, "_state", None):
            self._library.nvjpegJpegStateDestroy(self._state)
        if getattr(self, "_handle", None):
            self._library.nvjpegDestroy(self._handle)


@cache
def _library(release: int) -> ctypes.CDLL:
    """Return nvJPEG for this release of CUDA, from the package ``nvidia-nvjpeg`` or the CUDA toolkit."""
    name = f"libnvjpeg.so.{release}"
    for path in (*_packaged(name), name):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CannotDecode(f"{name} is not installed: pip install nvidia-nvjpeg")


def _packaged(name: str) -> Iterator[str]:
    for folder in sys.path:
        yield from glob.glob(os.path.join(folder, "nvidia", "*", "lib", name))
