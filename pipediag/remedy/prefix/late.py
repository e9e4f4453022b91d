"""Results that are computed only if somebody looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...usercode import tree
from .agreement import SplitDiffers
from .structure import Like, tensors_in


class Result:
    """What a frozen call would give. It is called for when one of its tensors is used for the first time."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = fn, args, kwargs
        self._versions = tree.versions((args, kwargs))
        self._tensors: list[Tensor] | None = None

    def tensor(self, number: int) -> Tensor:
        """The ``number``-th tensor of the result.

        Raises:
            SplitDiffers: what the call was given has been changed since.
        """
        if self._tensors is None:
            fn, args, kwargs = self._call
            if tree.versions((args, kwargs)) != self._versions:
                raise SplitDiffers(
                    "a result of a frozen module is used that was not when the split was found: find it anew"
                )
            with torch.no_grad():
                self._tensors = tensors_in(fn(*args, **kwargs))
        return self._tensors[number]


class Late(Tensor):  # type: ignore[misc]
    """A tensor of a result, with its shape but without its values as long as nobody uses them."""

    _result: Result
    _number: int

    @staticmethod
    def __new__(cls, like: Like, result: Result, number: int) -> Late:
        made: Late = Tensor._make_wrapper_subclass(
            cls, like.size, strides=like.stride, dtype=like.dtype, device=like.device
        )
        made._result, made._number = result, number
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_real(args), **_real(kwargs or {}))

    __torch_function__ = torch._C._disabled_torch_function_impl


def _real(obj: Any) -> Any:
    if isinstance(obj, Late):
        return obj._result.tensor(obj._number)
    if isinstance(obj, (tuple, list)):
        return type(obj)(_real(item) for item in obj)
    if isinstance(obj, dict):
        return {key: _real(value) for key, value in obj.items()}
    return obj
