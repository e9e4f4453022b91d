"""Functions that read a file, given by its name, and return arrays or tensors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import values
from ..keys import NoKey, digest, path_state, simple
from .call import Call, Remembering


def by_path(family: int, module: str, name: str) -> Call:
    """Return the call of a function whose first argument is a file's name; the others must be simple."""
    return Call(module, "", name, partial(_stand_in, family, module))


def _stand_in(family: int, module: str, memo: Remembering, plain: Callable[..., Any]) -> Callable[..., Any]:
    name = f"{plain.__module__}.{plain.__qualname__}"  # whatever it is called by

    def read(*args: Any, **kwargs: Any) -> Any:
        call = partial(plain, *args, **kwargs)
        return memo.recall(family, partial(_key, module, name, args, kwargs), call, values.pack, values.unpack)

    return read


def _key(module: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    ending = os.path.splitext(os.fspath(args[0]))[1]
    if ending == ".npz":  # an archive that stays open; its members are remembered
        raise NoKey
    return digest(name, version(module), ending, path_state(args[0]), simple(args[1:]), simple(kwargs))


def version(module: str) -> str:
    """Return the version of the package of an imported module."""
    return str(getattr(sys.modules[module.partition(".")[0]], "__version__", ""))
