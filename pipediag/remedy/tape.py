"""Recording images: they go through the user's own transforms in place of the pixels, and keep what was asked for.

A recording image has a shape, a dtype and a type that torchvision's dispatcher and the user's ``isinstance`` take for
what it stands for: a tensor, a ``tv_tensors.Image``, a ``tv_tensors.Mask`` or a picture of Pillow's. It has no pixels.
A functional call on it is written down with the parameters that the user's own code drew; everything else that would
need pixels raises :class:`NotRecordable`, so that nothing is ever guessed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import PIL.Image
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data._utils.collate import default_collate, default_collate_fn_map
from torchvision import tv_tensors
from torchvision.transforms import functional as older
from torchvision.transforms.v2 import _augment, _auto_augment, _geometry, _misc
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2.functional import _utils as dispatch

from ..ladder.places import label
from .batched import mixing
from .ops import ENCODERS, OLDER, SEVERAL, NotRecordable, Op, State, convert_image_dtype, is_exact

_EMPTY = torch.empty(0, device="meta")
_subclass = torch.Tensor._make_subclass


class Call(NamedTuple):
    """A functional call as it was made, for those who want to check its replay."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None  # which of several results
    ops: int  # how many ops it is replayed by
    drawn_from: Tensor | None  # where torch's generator stood, for a call that draws by itself

    @property
    def name(self) -> str:
        return label(self.fn)

    def __call__(self, image: Any) -> Any:
        with torch.random.fork_rng(devices=(), enabled=self.drawn_from is not None):
            if self.drawn_from is not None:
                torch.set_rng_state(self.drawn_from)
            # The original is needed afterwards, also where the call was to write into it.
            image = image.clone() if isinstance(image, Tensor) else image
            result = self.fn(image, *self.args, **self.kwargs)
        return result if self.part is None else result[self.part]


class Tape:
    """What a recording image stands for: its source, what was called on it so far, and its state after that.

    Tapes share their beginnings, as the images of several views do: each holds one call and the tape before it.
    """

    __slots__ = ("_before", "_call", "_made", "_site", "source", "source_size", "state")

    def __init__(self, source: Any, state: State) -> None:
        self.source = source
        self.source_size = state.size
        self.state = state
        self._before: Tape | None = None
        self._made: list[Op] = []
        self._site = 0
        self._call: Any = None

    def then(
        self,
        ops: list[Op],
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        part: int | None = None,
        pillow: bool | None = None,
        drawn_from: Tensor | None = None,
        state: State | None = None,
    ) -> Tape:
        """The tape with one call more; ``pillow`` where the call changes whose image it is, ``state`` its type."""
        state = state or self.state
        if state.pillow and not session.allow_approximate:
            _refuse_approximate(ops)
        if session.refused and ops:
            _refuse(fn)
        after = Tape.__new__(Tape)
        after.source, after.source_size = self.source, self.source_size
        after._before, after._made, after._site = self, ops, session.site
        after._call = (fn, args, kwargs, part, drawn_from)
        if ops:
            state = State(ops[-1].shape, ops[-1].dtype, state.pillow, state.mask, state.strided)
        after.state = state if pillow is None else state._replace(pillow=pillow)
        return after

    @property
    def made(self) -> bool:
        """Whether the last call did anything to the image."""
        return bool(self._made)

    def follows(self, tape: Tape) -> bool:
        """Whether it is ``tape`` with one call more."""
        return self._before is tape

    def then_as(self, other: Tape) -> Tape:
        """The tape with the last call of ``other`` more, which was made on an image of the same state."""
        after = Tape.__new__(Tape)
        after.source, after.source_size = self.source, self.source_size
        after._before, after._made, after._call, after.state = self, other._made, other._call, other.state
        after._site = session.site
        return after

    def track(self) -> tuple[tuple[Op, ...], tuple[int, ...]]:
        """All ops, and for each the link of the user's chain that it came from."""
        ops: list[Op] = []
        sites: list[int] = []
        for tape in self._from_the_first():
            ops += tape._made
            sites += [tape._site] * len(tape._made)
        return tuple(ops), tuple(sites)

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.track()[0]

    @property
    def calls(self) -> list[Call]:
        """What was called, in order."""
        made = []
        for tape in self._from_the_first():
            if tape._call is not None:
                fn, args, kwargs, part, drawn_from = tape._call
                made.append(Call(fn, args, kwargs or {}, part, len(tape._made), drawn_from))
        return made

    def pixels(self) -> Any:
        """The image itself: the source after all calls, made one by one."""
        image = self.source
        for call in self.calls:
            image = call(image)
        return image

    @property
    def first(self) -> Tape:
        """The tape that this one began as."""
        return self._from_the_first()[0]

    def _from_the_first(self) -> list[Tape]:
        tapes: list[Tape] = []
        tape: Tape | None = self
        while tape is not None:
            tapes.append(tape)
            tape = tape._before
        return tapes[::-1]


def _refuse_approximate(ops: list[Op]) -> None:
    for op in ops:
        if not is_exact(op, True):
            raise NotRecordable(f"Pillow's {op.name} differs from the tensors' (allow_approximate=True moves it)")


def _refuse(fn: Callable[..., Any]) -> None:
    if label(fn) in session.refused:
        raise NotRecordable(f"{label(fn)} gives other pixels on the device, as its certificate shows")


class _Session:
    """What holds while one sample is recorded."""

    active = False  # whether anything is recorded now
    site = 0  # the link of the chain that is at work
    allow_approximate = False
    refused: frozenset[str] = frozenset()
    copies = False  # sources are copied, because the dataset writes into them again
    seen: list[tuple[Any, Any]] | None = None  # in a trial: the images that were stood in for, and copies of them

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Nothing is recorded, inside."""
        before, self.active = self.active, False
        try:
            yield
        finally:
            self.active = before


session = _Session()


class _Unreadable:
    """What recording images share: they answer for their shape and dtype, and raise for everything else."""

    tape: Tape
    stands_for: ClassVar[type]
    dimensions: ClassVar[tuple[int, ...]] = (3,)
    mixes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, tape: Tape) -> Any:
        image = _subclass(cls, _EMPTY)
        image.tape = tape
        return image

    @classmethod
    def wrap(cls, image: Any, like: Any, **kwargs: Any) -> Any:
        """As torchvision gives a result the type of what it was made from."""
        return cls._retyped(image)

    def as_subclass(self, cls: type) -> Any:
        return _STANDING_FOR.get(cls, RecordingStack)._retyped(self)

    @classmethod
    def _retyped(cls, image: Any) -> Any:
        if not isinstance(image, _TENSORS) or cls not in _TENSORS:
            raise NotRecordable("an image is given another type")
        state = image.tape.state._replace(mask=cls is RecordingMask)
        return cls.of(image.tape.then([], _itself, state=state))

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.tape.state.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tape.state.dtype

    @property
    def ndim(self) -> int:
        return len(self.tape.state.shape)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return math.prod(self.tape.state.shape)

    def __len__(self) -> int:
        return self.tape.state.shape[0]

    def is_floating_point(self) -> bool:
        return bool(self.dtype.is_floating_point)

    def detach(self) -> Any:
        return self

    def contiguous(self, *args: Any, **kwargs: Any) -> Any:
        """The image, as a plain tensor, as torchvision's types become by most methods."""
        return self if isinstance(self, RecordingStack) else self.as_subclass(Tensor)

    cpu = contiguous

    def float(self) -> Any:
        return self.contiguous().to(torch.float32)

    def pixels(self) -> Tensor:
        """The image itself, for whoever has kept a recording image and looks at it afterwards."""
        with session.idle():
            image: Tensor = self.tape.pixels()
            return image

    def to(self, *args: Any, **kwargs: Any) -> Any:
        if not session.active:
            return self.pixels().to(*args, **kwargs)
        dtype = kwargs.pop("dtype", args[0] if args and isinstance(args[0], torch.dtype) else None)
        if kwargs or len(args) > 1 or dtype is None or isinstance(self, RecordingStack):
            raise NotRecordable("an image is moved before the loader hands it over")
        return _record(self, "to_dtype", F.to_dtype, (dtype,), {})

    def __repr__(self, **_: Any) -> str:
        return f"{type(self).__name__}({list(self.tape.state.shape)}, {self.tape.state.dtype})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not session.active:
            return _itself, (self.pixels(),)
        raise NotRecordable("an image is pickled or copied before its batch is complete")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not session.active:
            args, kwargs = tree_map_only(_Unreadable, lambda image: image.pixels(), (args, kwargs or {}))
            return func(*args, **kwargs)
        answer = _ANSWERS.get(func)
        if answer is None:
            raise NotRecordable(f"{_name(func)} would need the pixels of an image")
        return answer(*args, **kwargs or {})


class RecordingTensor(_Unreadable, torch.Tensor):  # type: ignore[misc]
    stands_for = torch.Tensor


class RecordingImage(_Unreadable, tv_tensors.Image):  # type: ignore[misc]
    stands_for = tv_tensors.Image


class RecordingMask(_Unreadable, tv_tensors.Mask):  # type: ignore[misc]
    stands_for = tv_tensors.Mask
    dimensions = (2, 3)


class RecordingStack(_Unreadable, torch.Tensor):  # type: ignore[misc]
    """``torch.stack`` of recording images or of such stacks: a batch, or the crops of one image.

    ``mixes`` holds what was done to the batch as a whole since: MixUp or CutMix, with its weight or box.
    """

    stands_for = torch.Tensor
    parts: list[Any]

    @staticmethod
    def made_of(parts: list[Any]) -> RecordingStack:
        shape, dtype, *_ = parts[0].tape.state
        for part in parts:
            if not isinstance(part, _Unreadable):
                raise NotRecordable("images are stacked with what is none that is recorded")
            state = part.tape.state
            if state.shape != shape:
                raise RuntimeError(f"stack expects each tensor to be equal size, but got {shape} and {state.shape}")
            if state.dtype != dtype:
                raise NotRecordable(f"images of dtype {dtype} and {state.dtype} are stacked")
            if part.mixes:
                raise NotRecordable("mixed batches are stacked")
        return RecordingStack._with(parts, (len(parts), *shape), dtype, ())

    def pixels(self) -> Tensor:
        stacked = torch.stack([part.pixels().as_subclass(Tensor) for part in self.parts])
        for how, value in self.mixes:
            stacked = getattr(mixing, how)(stacked, value)
        return stacked

    @staticmethod
    def _with(parts: list[Any], shape: tuple[int, ...], dtype: torch.dtype, mixes: Any) -> RecordingStack:
        stack: RecordingStack = RecordingStack.of(Tape(None, State(shape, dtype)))
        stack.parts, stack.mixes = parts, mixes
        return stack

    def mixed(self, how: str, value: Any) -> RecordingStack:
        """The batch after ``how``, a function of :mod:`pipediag.remedy.batched.mixing`."""
        return self._with(self.parts, self.tape.state.shape, self.dtype, (*self.mixes, (how, value)))


class RecordingPicture(PIL.Image.Image):
    """Stands for a picture of Pillow's; there is no image core behind it."""

    stands_for = PIL.Image.Image
    tape: Tape

    @staticmethod
    def of(tape: Tape, mode: str) -> RecordingPicture:
        picture = RecordingPicture.__new__(RecordingPicture)
        picture.__dict__.update(tape=tape, _mode=mode, info={}, _size=tape.state.size[::-1], readonly=0)
        picture.__dict__.update(palette=None, _exif=None, pyaccess=None)
        return picture

    def __getattribute__(self, name: str) -> Any:
        if name in _PICTURE:
            return object.__getattribute__(self, name)
        if not session.active:
            with session.idle():
                return getattr(object.__getattribute__(self, "tape").pixels(), name)
        raise NotRecordable(f"{name!r} of a picture would need its pixels")

    def getbands(self) -> tuple[str, ...]:
        return tuple(PIL.Image.getmodebandnames(self._mode))

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if mode in (None, self._mode) and not args and not kwargs:
            return self
        raise NotRecordable(f"a picture of mode {self._mode} is converted to {mode}")

    def copy(self) -> Any:
        return self


_PICTURE = frozenset(
    {"tape", "_mode", "mode", "_size", "size", "width", "height", "info", "getbands", "convert", "copy", "stands_for"}
    | {"__class__", "__dict__", "__doc__", "__module__", "close", "__del__", "format"}
)


def _name(func: Any) -> str:
    owner = getattr(getattr(func, "__self__", None), "__name__", "")  # the getter of a property
    return str(owner or getattr(func, "__name__", func))


def _stacked(tensors: Any, dim: int = 0, *, out: Any = None) -> RecordingStack:
    parts = list(tensors)
    if dim not in (0, -1 - parts[0].ndim) or out is not None or not all(isinstance(p, _Unreadable) for p in parts):
        raise NotRecordable("images are stacked along another dimension than the first, or with what is no image")
    return RecordingStack.made_of(parts)


_ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.stack: _stacked,
    torch.is_tensor: lambda image: True,
    torch.is_floating_point: lambda image: image.dtype.is_floating_point,
    torch.numel: lambda image: image.numel(),
    torch.Tensor.requires_grad.__get__: lambda image, *_: False,
    torch.Tensor.is_cuda.__get__: lambda image, *_: False,
    torch.Tensor.is_sparse.__get__: lambda image, *_: False,
    torch.Tensor.layout.__get__: lambda image, *_: torch.strided,
}

RECORDING = (RecordingTensor, RecordingImage, RecordingMask, RecordingPicture)
_TENSORS = (RecordingTensor, RecordingImage, RecordingMask)


def _itself(image: Any) -> Any:
    """What changes an image's type alone."""
    return image


def is_recording(value: Any) -> bool:
    return isinstance(value, (_Unreadable, RecordingPicture))


def stand_in(value: Any) -> Any:
    """A recording image for a tensor ``(C, H, W)`` (a mask also ``(H, W)``) or a picture; None for anything else."""
    if isinstance(value, PIL.Image.Image):
        if value.mode not in _BANDS:
            return None
        value = _seen(value, value.copy)
        shape = (_BANDS[value.mode], value.height, value.width)
        return RecordingPicture.of(Tape(value, State(shape, torch.uint8, pillow=True)), value.mode)
    cls = _STANDING_FOR.get(type(value))
    if cls is None or value.requires_grad or not value.is_cpu:
        return None
    shape = tuple(value.shape)
    if len(shape) not in cls.dimensions or 0 in shape:
        return None
    state = State(shape, value.dtype, False, cls is RecordingMask, not value.is_contiguous())
    return cls.of(Tape(_seen(value, value.clone), state))


_STANDING_FOR: dict[type, type[_Unreadable]] = {cls.stands_for: cls for cls in _TENSORS}


def _seen(value: Any, copied: Callable[[], Any]) -> Any:
    """The image that a tape keeps."""
    if session.seen is not None:
        session.seen.append((value, copied()))
    return copied() if session.copies else value


#: Modes with one byte a channel, and their channels.
_BANDS = {"L": 1, "RGB": 3}


def after_calls(image: Any, tape: Tape) -> Any:
    """An image of the same type, with another tape."""
    cls = type(image)
    if cls is RecordingPicture:
        return RecordingPicture.of(tape, {1: "L", 3: "RGB"}[tape.state.channels])
    again = _subclass(cls, _EMPTY)
    again.tape = tape
    return again


def _record(
    image: Any, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fixed: bool = True
) -> Any:
    """The image after a functional call, which is on its tape now."""
    tape = image.tape
    several = SEVERAL.get(name)
    if several is not None:
        parts = several(tape.state, *args, **kwargs)
        return tuple(after_calls(image, tape.then(ops, fn, args, kwargs, k)) for k, ops in enumerate(parts))
    drawn_from = torch.get_rng_state() if name == "gaussian_noise" else None
    ops = ENCODERS[name](tape.state if fixed else tape.state._replace(fixed=False), *args, **kwargs)
    after = tape.then(ops, fn, args, kwargs, drawn_from=drawn_from)
    last = args[_IN_PLACE[name] :] if name in _IN_PLACE else ()
    if not (kwargs.get("inplace", False) or any(last)):
        return after_calls(image, after)
    if not tape.ops:
        raise NotRecordable("the dataset's own image is written into")
    image.tape = after
    return image


#: Functions that may write into the image, and how many arguments come before the one that says so.
_IN_PLACE = {"normalize": 2, "erase": 5}


# ---- where calls come in: torchvision's dispatcher, and the functions that are none of its

_META = {
    "get_size": lambda image: list(image.tape.state.size),
    "get_dimensions": lambda image: [image.tape.state.channels, *image.tape.state.size],
    "get_num_channels": lambda image: image.tape.state.channels,
}


def _kernel(name: str) -> Callable[..., Any]:
    functional = getattr(F, name)

    def record(image: Any, *args: Any, **kwargs: Any) -> Any:
        return _record(image, name, functional, args, kwargs)

    encode = ENCODERS.get(name)
    if encode is None or name == "gaussian_noise" or name in _IN_PLACE:
        return record

    def record_plainly(image: Any, *args: Any, **kwargs: Any) -> Any:
        """The same, for what is called most."""
        tape = image.tape
        return after_calls(image, tape.then(encode(tape.state, *args, **kwargs), functional, args, kwargs))

    return record_plainly


def _collate(images: list[Any], *, collate_fn_map: Any = None) -> Any:
    if not session.active:  # images that somebody kept
        return default_collate([image.pixels() if is_recording(image) else image for image in images])
    return RecordingStack.made_of(images)


@functools.cache
def register() -> None:
    """Make torchvision's dispatcher and torch's collating know recording images, in this process, for good.

    It only adds entries for types of our own: no call of anybody else's is changed.
    """
    registry = dispatch._KERNEL_REGISTRY
    for kind in (*_TENSORS, RecordingStack):
        default_collate_fn_map[kind] = _collate
    for name in (*ENCODERS, *SEVERAL):
        functional = getattr(F, name, None)
        if functional not in registry:  # not in this version of torchvision
            continue
        known, kernel = registry[functional], _kernel(name)
        for cls in RECORDING:
            # A mask is recorded where torchvision changes masks, and passes through where it lets them pass.
            if any(base in known for base in _dispatched(cls)):
                known[cls] = kernel
    for name, answer in _META.items():
        for cls in RECORDING:
            registry[getattr(F, name)][cls] = answer


def _dispatched(cls: type) -> Iterator[type]:
    """The types whose kernels torchvision would take for a ``cls``."""
    for base in cls.__mro__:
        if base is tv_tensors.TVTensor:
            return
        yield base


def _to_tensor(picture: Any) -> Any:
    """``to_tensor``: the channels first, as floats between 0 and 1."""
    tape = picture.tape
    ops = convert_image_dtype(tape.state, torch.get_default_dtype())
    return RecordingTensor.of(tape.then(ops, _ORIGINAL["to_tensor"], pillow=False))


def _pil_to_tensor(picture: Any) -> Any:
    return RecordingTensor.of(picture.tape.then([], _ORIGINAL["pil_to_tensor"], pillow=False))


def _to_image(image: Any) -> Any:
    return RecordingImage.of(image.tape.then([], _ORIGINAL["to_image"], pillow=False))


_ORIGINAL = {"to_tensor": older.to_tensor, "pil_to_tensor": older.pil_to_tensor, "to_image": F.to_image}


def _refused(what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotRecordable(what)

    return refuse


_TO_PICTURE = _refused("an image is turned into a picture")


def _older(name: str) -> Callable[..., Any]:
    original = getattr(older, name)

    def record(image: Any, *args: Any, **kwargs: Any) -> Any:
        if name not in _IN_PLACE and isinstance(image, (RecordingImage, RecordingMask)):
            # These functions know plain tensors only, and give one unless they give the image itself.
            made = _record(image.as_subclass(Tensor), OLDER[name], original, args, kwargs, fixed=False)
            return image if made.tape.state == image.tape.state._replace(mask=False) and not made.tape.made else made
        return _record(image, OLDER[name], original, args, kwargs, fixed=False)

    return record


def _convert_image_dtype(image: Any, dtype: torch.dtype = torch.float) -> Any:
    ops = convert_image_dtype(image.tape.state, dtype)
    plain = ops and isinstance(image, (RecordingImage, RecordingMask))
    image = image.as_subclass(Tensor) if plain else image
    return after_calls(image, image.tape.then(ops, _CONVERT, (dtype,)))


_CONVERT = older.convert_image_dtype


def _patches() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Functions outside the dispatcher, and what each does for a recording image instead."""
    for name in (*OLDER, *SEVERAL):
        if hasattr(older, name):
            yield older, name, (_kernel(name) if name in SEVERAL else _older(name))
    yield older, "convert_image_dtype", _convert_image_dtype
    yield older, "get_dimensions", _META["get_dimensions"]
    yield older, "get_image_num_channels", _META["get_num_channels"]
    yield older, "get_image_size", lambda image: list(image.tape.state.size[::-1])
    for module in (older, F):
        yield module, "to_tensor", _to_tensor
        yield module, "pil_to_tensor", _pil_to_tensor
        yield module, "to_pil_image", _TO_PICTURE
    yield F, "to_image", _to_image


def _guarded(original: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and is_recording(args[0]):
            return instead(*args, **kwargs)
        return original(*args, **kwargs)

    return call


def _stood_for(image: Any) -> Any:
    return getattr(image, "stands_for", image)


def _fill_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Fill values are kept by the image's type: a recording image's is the one it stands for."""
    return lambda fills, image_type: original(fills, _stood_for(image_type))


def _dtype_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """``ToDtype`` may keep its dtypes by the image's type."""

    def transform(self: Any, image: Any, params: Any) -> Any:
        if not is_recording(image) or not isinstance(self.dtype, dict):
            return original(self, image, params)
        if image.stands_for not in self.dtype and "others" not in self.dtype:
            raise NotRecordable(f"ToDtype knows no dtype for {image.stands_for.__name__}")
        dtype = self.dtype.get(image.stands_for, self.dtype.get("others"))
        return image if dtype is None else self._call_kernel(F.to_dtype, image, dtype=dtype, scale=self.scale)

    return transform


def _mixing(original: Callable[..., Any], how: str, value: str) -> Callable[..., Any]:
    """MixUp and CutMix work on a batch, with one weight or box for all of it; the labels are mixed for real."""

    def transform(self: Any, batch: Any, params: Any) -> Any:
        if not isinstance(batch, RecordingStack):
            return original(self, batch, params)
        self._check_image_or_video(batch, batch_size=params["batch_size"])
        return batch.mixed(how, params[value])

    return transform


@functools.cache
def _replacements() -> list[tuple[Any, str, Any, Any]]:
    """Owner, name, what is there, and what knows recording images."""
    made = [(owner, name, _guarded(getattr(owner, name), instead)) for owner, name, instead in _patches()]
    made += [(module, "_get_fill", _fill_of(module._get_fill)) for module in (_geometry, _auto_augment)]
    made.append((_misc.ToDtype, "transform", _dtype_of(_misc.ToDtype.transform)))
    made.append((_augment.MixUp, "transform", _mixing(_augment.MixUp.transform, "mixup", "lam")))
    made.append((_augment.CutMix, "transform", _mixing(_augment.CutMix.transform, "cutmix", "box")))
    return [(owner, name, getattr(owner, name), value) for owner, name, value in made]


@contextmanager
def recording(
    allow_approximate: bool = False, refused: frozenset[str] = frozenset(), copies: bool = False
) -> Iterator[None]:
    """Let torchvision's functions know recording images, inside; for any other image they are what they were.

    Args:
        allow_approximate: record what runs on Pillow's pictures, too.
        refused: names of functions that are not recorded.
        copies: keep a copy of each image, for a dataset that writes into the same memory again.
    """
    register()
    before = session.active
    session.active = True
    session.allow_approximate, session.refused, session.copies = allow_approximate, refused, copies
    try:
        for owner, name, _, value in _replacements():
            setattr(owner, name, value)
        yield
    finally:
        session.active = before
        session.allow_approximate, session.refused, session.copies = False, frozenset(), False
        for owner, name, original, _ in _replacements():
            setattr(owner, name, original)
