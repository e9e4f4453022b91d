"""Define the ops that replay recorded calls: a name, a static part that samples share, and numbers for each sample."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...errors import PipediagError
from .library_code import calls_own_only

if TYPE_CHECKING:
    from .operation import Operation

Shape = tuple[int, ...]
#: What is known of the ops of each name; :mod:`.table` fills it.
OPERATIONS: dict[str, Operation] = {}


class NotRecordable(PipediagError):
    """Error: user code needs pixels or makes a call that cannot be replayed, so it must run in the worker.

    ``raised`` counts all instances, because user code may catch and hide the error.
    """

    raised = 0

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        NotRecordable.raised += 1


class Kind:
    """Part of an op that samples share: its name and static part, and the channels and dtype of its result.

    Equal kinds are one object, because every sample compares them and looks them up.
    """

    __slots__ = ("__weakref__", "channels", "dtype", "name", "static")
    name: str
    static: tuple[Any, ...]  # hashable
    channels: Shape  # the shape without its last two dimensions
    dtype: torch.dtype

    def __new__(cls, name: str, static: tuple[Any, ...], channels: Shape, dtype: torch.dtype) -> Kind:
        parts = (name, static, channels, dtype)
        known = _KINDS.get(parts)
        kind = None if known is None else known()
        if kind is None:
            kind = object.__new__(cls)
            kind.name, kind.static, kind.channels, kind.dtype = parts
            _KINDS[parts] = weakref.ref(kind, functools.partial(_forget, parts))
        return kind

    @property
    def operation(self) -> Operation:
        return OPERATIONS[self.name]

    def __reduce__(self) -> Any:
        return Kind, (self.name, self.static, self.channels, self.dtype)

    def __repr__(self) -> str:
        return f"Kind({self.name!r}, {self.static}, {self.channels}, {self.dtype})"


_KINDS: dict[tuple[Any, ...], weakref.ref[Kind]] = {}  # a WeakValueDictionary takes twice the time


def _forget(parts: tuple[Any, ...], gone: weakref.ref[Kind]) -> None:
    if _KINDS.get(parts) is gone:
        del _KINDS[parts]


class _Op(NamedTuple):
    kind: Kind
    shape: Shape  # of the result
    numbers: tuple[Any, ...]  # per sample
    bulk: Tensor | None  # drawn values of image size: noise, a displacement field


class Op(_Op):
    """One step of a replay. One launch replays it for all samples with the same kind and the same input shape."""

    __slots__ = ()

    def __new__(
        cls,
        name: str,
        static: tuple[Any, ...],
        numbers: tuple[Any, ...],
        shape: Shape,
        dtype: torch.dtype,
        bulk: Tensor | None = None,
    ) -> Op:
        return op_of((Kind(name, static, shape[:-2], dtype), shape, numbers, bulk))

    def given(self, *numbers: float) -> Op:
        """Return the same op with these numbers."""
        return op_of((self.kind, self.shape, numbers, None))

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def static(self) -> tuple[Any, ...]:
        return self.kind.static

    @property
    def dtype(self) -> torch.dtype:
        return self.kind.dtype

    def __reduce__(self) -> Any:
        return op_of, (tuple(self),)


#: Builds an op from its four parts, faster than the class.
op_of: Callable[[tuple[Kind, Shape, tuple[Any, ...], Tensor | None]], Op] = functools.partial(tuple.__new__, Op)


#: A sample's ops, and for each op its site: the index of the link in the user's chain that made it.
Track = tuple[tuple[Op, ...], tuple[float, ...]]


class State(NamedTuple):
    """Metadata of an image without pixels: its shape, its dtype and how it is stored."""

    shape: Shape
    dtype: torch.dtype
    mask: bool = False
    strided: bool = False  # its pixels are not contiguous in memory
    fixed: bool = True  # uint8 is resized in fixed point, as the functions of v2 do; those of v1 do not

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        height, width = (1, 1, *self.shape)[-2:]
        return height, width

    @property
    def channels(self) -> int:
        return self.shape[-3] if len(self.shape) > 2 else 1

    def resized(self, height: int, width: int) -> Shape:
        return (*self.shape[:-2], height, width)

    def op(
        self,
        name: str,
        *numbers: Any,
        static: tuple[Any, ...] = (),
        shape: Shape | None = None,
        dtype: torch.dtype | None = None,
        bulk: Tensor | None = None,
    ) -> Op:
        """Return an op on the image; its result has the image's shape and dtype unless others are given."""
        return Op(name, static, numbers, self.shape if shape is None else shape, dtype or self.dtype, bulk)


#: Builds a state from all its parts, faster than the class.
state_of: Callable[[tuple[Shape, torch.dtype, bool, bool, bool]], State] = functools.partial(tuple.__new__, State)


def encoded(encode: Callable[..., Any], state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the ops of a call.

    Raises:
        NotRecordable: also for arguments that make ``encode`` fail: on pixels, the library raises an error of its own.
    """
    try:
        return encode(state, *args, **kwargs)
    except NotRecordable:
        raise
    except Exception as error:
        raise NotRecordable(f"its arguments are no usual ones: {type(error).__name__}: {error}") from None


#: Calls like which the library has accepted one, and whether it returned the image itself.
_ACCEPTED: dict[Any, bool] = {}
_MOST_ACCEPTED = 4096


def gives_itself(
    fn: Callable[..., Any], of: Any, args: Any, kwargs: Any, ops: Sequence[Op], tried: Callable[[], tuple[Any, Any]]
) -> bool:
    """Return whether a call returns its image itself. The first call of each kind is tried on an image of zeros.

    ``of`` is the image's type and dtype; ``tried`` makes the call on such an image, and returns the image and the
    result. The ops are those that replay the call.

    Raises:
        NotRecordable: the library refuses the call, or gives an image of another shape or dtype than the ops; or the
            call would run user code.
    """
    if not calls_own_only(fn):
        raise NotRecordable("it calls a function that your script has put in the place of the library's")
    key = (fn, of, *map(_form, args), *[op[0] for op in ops])
    key = (key, *((name, _form(value)) for name, value in kwargs.items())) if kwargs else key
    known = _ACCEPTED.get(key)
    if known is not None:
        return known
    try:
        image, result = tried()
    except Exception as error:
        raise NotRecordable(f"it fails with {type(error).__name__}: {error}") from error
    if ops and isinstance(result, Tensor) and (tuple(result.shape), result.dtype) != (ops[-1].shape, ops[-1].dtype):
        raise NotRecordable("its result is another one than expected")
    if len(_ACCEPTED) >= _MOST_ACCEPTED:
        _ACCEPTED.clear()
    _ACCEPTED[key] = result is image
    return _ACCEPTED[key]


def _form(value: Any) -> Any:
    """Return the type of an argument, and the number of its items."""
    cls = type(value)
    return (cls, *map(type, value)) if cls is list or cls is tuple else cls


def inside(box: Sequence[float], size: tuple[int, int]) -> bool:
    """Return whether a box (top, left, height, width) lies inside an image of ``size`` (height, width)."""
    top, left, height, width = box
    return top >= 0 and left >= 0 and top + height <= size[0] and left + width <= size[1]
