"""``numpy.load`` of ``.npy`` files, and the members of ``.npz`` files."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import values
from ..keys import NoKey, digest, file_state
from .by_path import by_path, version
from .call import NUMPY, Call, Remembering


def _member(memo: Remembering, plain: Callable[..., Any]) -> Callable[..., Any]:
    def getitem(self: Any, key: Any) -> Any:
        return memo.recall(NUMPY, partial(_key, self, key), partial(plain, self, key), values.pack, values.unpack)

    return getitem


def _key(archive: Any, key: Any) -> bytes:
    if type(archive.zip.fp) is not io.BufferedReader:  # of an archive in memory, each member would digest all
        raise NoKey
    found = archive.zip.getinfo(archive._files[key])
    member = (found.header_offset, found.CRC, found.compress_size, found.file_size, found.compress_type)
    how = (archive.allow_pickle, archive.max_header_size, repr(archive.pickle_kwargs), type(archive).__qualname__)
    return digest("npz", version("numpy"), file_state(archive.zip.fp)[:-1], found.filename, member, how)


CALLS = (by_path(NUMPY, "numpy", "load"), Call("numpy.lib.npyio", "NpzFile", "__getitem__", _member))
