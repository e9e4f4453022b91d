"""Decode JPEGs with the GPU's own JPEG engines, through NVIDIA's nvJPEG library.

nvJPEG gives the planes of luminance and chroma as the file holds them, and :mod:`.triton.jpeg_colours` converts them to
pixels: nvJPEG's own conversion differs from the CPU's by a level here and there. Calling the library directly takes a
third of the host's time of the packages built on it.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
import threading
from collections.abc import Iterator
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ...errors import PipediagError

_HARDWARE = 3  # NVJPEG_BACKEND_HARDWARE
#: NVJPEG_FLAGS_HW_DECODE_NO_PIPELINE. With its pipeline the library now and then hangs on an H200 that has other work.
_NO_PIPELINE = 1
_PLANES = 1  # NVJPEG_OUTPUT_YUV
_CHANNELS = 4  # NVJPEG_MAX_COMPONENT
_LAST_SUFFIXED = 12  # last release of CUDA that is part of its packages' names

Table: TypeAlias = npt.NDArray[np.int64]


class CannotDecode(PipediagError):
    """Error: the library is missing, the GPU has no JPEG engine, or the engine refuses a file."""


class Decoder:
    """Decoder for one stream. The stream's device must be the current one.

    Raises:
        CannotDecode: the library is missing, or the GPU has no JPEG engine.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._library = _library(int((torch.version.cuda or "0").split(".")[0]))
        self._stream = stream
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._files = 0
        self._turn = threading.Lock()  # torch gives one stream to several loaders
        self._call("nvjpegCreateEx", _HARDWARE, None, None, _NO_PIPELINE, ctypes.byref(self._handle))
        self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))

    def decode(self, files: Table) -> npt.NDArray[np.bool_]:
        """Launch the decoding on the stream, and return which files the engine decodes.

        Args:
            files: int64 ``(N, 8)``: for each file its address and size in host memory, the addresses of its three
                planes on the device, and their widths. The host memory must stay until the stream has done this work.
        """
        with self._turn:
            try:
                self._launch(files)
                return np.ones(len(files), bool)
            except CannotDecode:
                known = np.array([self._is_supported(*file[:2].tolist()) for file in files])
            try:
                if known.all() or not known.any():
                    raise CannotDecode("the engine gives no reason")
                self._launch(files[known])
            except CannotDecode:
                known[:] = False
            return known

    def _launch(self, files: Table) -> None:
        number = len(files)
        if number != self._files:
            self._files = 0
            self._call("nvjpegDecodeBatchedInitialize", self._handle, self._state, number, 1, _PLANES)
            self._files = number
        data, sizes = np.ascontiguousarray(files.T[:2])
        images: Table = np.zeros((number, 2, _CHANNELS), np.int64)  # nvjpegImage_t: pointers, then pitches
        images[:, 0, :3], images[:, 1, :3] = files[:, 2:5], files[:, 5:]
        parts = [array.ctypes.data_as(ctypes.c_void_p) for array in (data, sizes, images)]
        self._call("nvjpegDecodeBatched", self._handle, self._state, *parts, ctypes.c_void_p(self._stream.cuda_stream))

    def _is_supported(self, address: int, nbytes: int) -> bool:
        stream, supported = ctypes.c_void_p(), ctypes.c_int(1)
        self._call("nvjpegJpegStreamCreate", self._handle, ctypes.byref(stream))
        try:
            data, size = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
            self._call("nvjpegJpegStreamParse", self._handle, data, size, 0, 0, stream)
            self._call("nvjpegDecodeBatchedSupported", self._handle, stream, ctypes.byref(supported))
        except CannotDecode:
            return False
        finally:
            self._library.nvjpegJpegStreamDestroy(stream)
        return supported.value == 0  # 0 means yes

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._library, name)(*args)  # releases Python's lock meanwhile
        if status:
            raise CannotDecode(f"{name} returned status {status}")

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        self._stream.synchronize()  # its work may still use the state
        if getattr(self, "_state", None):
            self._library.nvjpegJpegStateDestroy(self._state)
        if getattr(self, "_handle", None):
            self._library.nvjpegDestroy(self._handle)


@cache
def _library(release: int) -> ctypes.CDLL:
    """Load nvJPEG for this release of CUDA, from the package ``nvidia-nvjpeg`` or the CUDA toolkit."""
    name = f"libnvjpeg.so.{release}"
    for path in (*_packaged(name), name):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    package = "nvidia-nvjpeg" if release > _LAST_SUFFIXED else f"nvidia-nvjpeg-cu{release}"
    raise CannotDecode(f"{name} is not installed: pip install {package}")


def _packaged(name: str) -> Iterator[str]:
    for folder in sys.path:
        yield from glob.glob(os.path.join(folder, "nvidia", "*", "lib", name))
