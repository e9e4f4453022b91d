"""The library calls that are known to depend on their inputs only, beside Pillow's: see :mod:`.pictures`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from . import values
from .arena import Arena
from .keys import NoKey, content, digest, file_state, path_state, simple, tensor

#: What calls are counted as, by number.
FAMILIES = ("Pillow", "torchvision.io", "OpenCV", "numpy.load", "sound files", "@pipediag.pure")
PILLOW, TORCHVISION, OPENCV, NUMPY, SOUND, PURE = range(len(FAMILIES))


class Remembering(Protocol):
    """The memo, as calls use it."""

    arena: Arena

    def recall(
        self,
        family: int,
        key: Callable[[], bytes],
        plain: Callable[[], Any],
        pack: Callable[[Any], Any],
        unpack: Callable[[Any], Any],
    ) -> Any: ...


class Call(NamedTuple):
    """A function or method to patch."""

    module: str  # where it is, if it is imported
    owner: str  # the class or object in the module that has it; empty for the module itself
    name: str  # of the function
    #: Takes the memo and the function, and returns what stands in for the function.
    stand_in: Callable[[Remembering, Callable[..., Any]], Callable[..., Any]]


def by_path(family: int, module: str, name: str) -> Call:
    """Return the call of a function whose first argument is a file's name; the others must be simple."""

    def key(plain: Any, args: Any, kwargs: Any) -> bytes:
        ending = os.path.splitext(os.fspath(args[0]))[1]
        if ending == ".npz":  # an archive that stays open; its members are remembered
            raise NoKey
        called = f"{plain.__module__}.{plain.__qualname__}"  # whatever it is called by
        return digest(called, _version(module), ending, path_state(args[0]), simple(args[1:]), simple(kwargs))

    return Call(module, "", name, partial(_stand_in, family, key))


def _stand_in(
    family: int, key: Callable[[Any, Any, Any], bytes], memo: Remembering, plain: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what answers a function's calls by their ``key(function, args, kwargs)``."""

    def remembered(*args: Any, **kwargs: Any) -> Any:
        made = partial(plain, *args, **kwargs)
        return memo.recall(family, partial(key, plain, args, kwargs), made, values.pack, values.unpack)

    return remembered


def _version(module: str) -> str:
    """Return the version of the package of an imported module."""
    return str(getattr(sys.modules[module.partition(".")[0]], "__version__", ""))


def _member(plain: Any, args: Any, kwargs: Any) -> bytes:
    """Return the key of a member of an ``.npz`` file."""
    archive, key = args
    if type(archive.zip.fp) is not io.BufferedReader:  # of an archive in memory, each member would digest all
        raise NoKey
    found = archive.zip.getinfo(archive._files[key])
    member = (found.header_offset, found.CRC, found.compress_size, found.file_size, found.compress_type)
    how = (archive.allow_pickle, archive.max_header_size, repr(archive.pickle_kwargs), type(archive).__qualname__)
    return digest("npz", _version("numpy"), file_state(archive.zip.fp)[:-1], found.filename, member, how)


def _of_tensor(name: str, plain: Any, args: Any, kwargs: Any) -> bytes:
    return digest(name, _version("torchvision"), tensor(args[0]), simple(args[1:]), simple(kwargs))


def _of_array(plain: Any, args: Any, kwargs: Any) -> bytes:
    buf = args[0]
    if type(buf).__name__ != "ndarray" or str(buf.dtype) != "uint8":
        raise NoKey
    return digest("imdecode", _version("cv2"), buf.shape, content(buf), simple(args[1:]), simple(kwargs))


#: The operators behind ``torchvision.io``.
_OPERATORS = ("decode_image", "decode_jpeg", "decode_png", "decode_webp")
_SOUNDS = (
    *(("soundfile", "read"), ("librosa.core.audio", "load"), ("librosa.core", "load"), ("librosa", "load")),
    *(("torchaudio", "load"), ("scipy.io.wavfile", "read")),
)

CALLS = (
    by_path(OPENCV, "cv2", "imread"),
    Call("cv2", "", "imdecode", partial(_stand_in, OPENCV, _of_array)),
    *(
        Call(
            "torchvision.io.image", "torch.ops.image", name, partial(_stand_in, TORCHVISION, partial(_of_tensor, name))
        )
        for name in _OPERATORS
    ),
    by_path(NUMPY, "numpy", "load"),
    Call("numpy.lib.npyio", "NpzFile", "__getitem__", partial(_stand_in, NUMPY, _member)),
    *(by_path(SOUND, module, name) for module, name in _SOUNDS),
)
