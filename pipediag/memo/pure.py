"""Implement ``pipediag.pure``, which marks a function of the user's whose results may be remembered."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from .memo import Memo


#: Memos in use, the latest last.
memos: list[Memo] = []


_P = ParamSpec("_P")
_R = TypeVar("_R")


def pure(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a function whose result depends on its arguments and the files that they name, and on nothing else.

    Under :func:`pipediag.cache` and ``pipediag run --cache-dir``, its results are remembered, and every call gets a
    copy of its own::

        @pipediag.pure
        def parse(path):
            return to_array(open(path).read())

    Arguments are known by their values: numbers, text, bytes, arrays and tensors of the CPU, and tuples, lists and
    dictionaries of them. A text that names a file also stands for the file's state. A call with another argument, such
    as an object or a folder, is made as it is; so is one whose result is not made of arrays, tensors, pictures and
    simple values, or shares memory with an argument. The function must not draw random numbers and must not change its
    arguments or anything else.

    Without a cache, a call costs one look-up.
    """
    drawing = False

    @functools.wraps(function)
    def remembered(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        nonlocal drawing
        if not memos or drawing:
            return function(*args, **kwargs)

        def made() -> _R:
            nonlocal drawing
            from ..usercode import randomness

            before = randomness.state()
            result = function(*args, **kwargs)
            if randomness.moved(before, randomness.state()):
                drawing = True
                warnings.warn(f"{function.__qualname__} draws random numbers: its results are not kept", stacklevel=5)
            return result

        result: _R = _recalled(memos[-1], function, made, lambda: drawing, args, kwargs)
        return result

    return remembered


def _recalled(
    memo: Memo, function: Any, made: Callable[[], Any], drawing: Callable[[], bool], args: Any, kwargs: Any
) -> Any:
    from . import values
    from .calls import PURE
    from .keys import argument, code_of, digest

    def key() -> bytes:
        return digest("pure", code_of(function), argument(args), argument(kwargs))

    def pack(result: Any) -> Any:
        if drawing():
            raise values.Unfit
        return values.pack(result, (args, kwargs))

    return memo.recall(PURE, key, made, pack, values.unpack)
