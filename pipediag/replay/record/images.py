"""Provide recording images, which pass through the user's own transforms in place of pixels and record the calls.

A recording image has a shape and a dtype, but no pixels. torchvision's dispatcher and the user's ``isinstance`` accept
it as the type that it stands for: a tensor, a ``tv_tensors.Image``, a ``tv_tensors.Mask`` or a Pillow image
(:mod:`.pictures`). A functional call on it is recorded with the parameters that the user's own code drew. Any other
operation that needs pixels raises :class:`NotRecordable`. Outside a recording, a recording image that user code has
kept behaves as the real image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import PIL.Image
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from ..decode.undecoded import UndecodedImage, UndecodedTensor, decoded
from ..layout import Strides, contiguous, copied
from ..ops import mixing
from ..ops.arguments import BANDS
from ..ops.op import NotRecordable, State, encoded, gives_itself, state_of
from ..ops.operation import Functional
from ..ops.table import FUNCTIONALS
from .pictures import RecordingPicture, lasting
from .strides import Layout, strides_of, strides_of_stack
from .tape import Call, Tape, on_pixels, session

_EMPTY = torch.empty(0, device="meta")
_subclass = torch.Tensor._make_subclass


class Unreadable:
    """Base class of recording images except pictures.

    Attributes:
        tape: the calls so far.
        stands_for: the type of the real image.
        dimensions: possible numbers of dimensions.
        mixes: see :class:`RecordingStack`.
        memory_layout: how several images lie in memory without the remedy; None for a single one.
    """

    tape: Tape
    stands_for: ClassVar[type]
    dimensions: ClassVar[tuple[int, ...]] = (3,)
    mixes: tuple[tuple[str, Any], ...] = ()
    memory_layout: Layout | None = None

    @classmethod
    def of(cls, tape: Tape) -> Any:
        image = blank(cls)
        image.tape = tape
        return image

    @classmethod
    def wrap(cls, image: Any, like: Any, **kwargs: Any) -> Any:
        """Convert ``image`` to this type, as torchvision does with the result of an op."""
        return cls._retyped(image)

    def as_subclass(self, cls: type) -> Any:
        return retyped(self, cls) if session.active else self.lasting().as_subclass(cls)

    @classmethod
    def _retyped(cls, image: Any) -> Any:
        if not isinstance(image, TENSORS) or cls not in TENSORS:
            raise NotRecordable("an image is given another type")
        state = image.tape.state._replace(mask=cls is RecordingMask)
        return cls.of(image.tape.then([], itself, state=state))

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

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.stands_for.__name__!r} object has no attribute {name!r}")

    def size(self, dim: int | None = None) -> Any:
        if dim is not None and not -self.ndim <= dim < self.ndim:
            low, high = -self.ndim, self.ndim - 1
            raise IndexError(f"Dimension out of range (expected to be in range of [{low}, {high}], but got {dim})")
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
        """Return a plain tensor, as most methods of torchvision's types do."""
        if not isinstance(self, RecordingStack):
            state = self.tape.state._replace(mask=False)
            return RecordingTensor.of(self.tape.then([], Tensor.contiguous, args, kwargs, state=state))
        if args or kwargs:
            session.settles(NotRecordable("a batch is given another layout"))
            return self.settled().contiguous(*args, **kwargs)
        return self

    def cpu(self, *_: Any, **__: Any) -> Any:
        return self if type(self) in (RecordingStack, RecordingTensor) else self.as_subclass(Tensor)

    def float(self) -> Any:
        return self.cpu().to(torch.float32)

    def pixels(self) -> Tensor:
        """Return the real image, for code that kept a recording image beyond the recording."""
        with session.idle():
            image: Tensor = self.tape.pixels()
            return image

    def lasting(self) -> Tensor:
        """Return the real image for code outside of the recording, which may write into it: always the same one."""
        return self.pixels() if self.tape.settled and self.tape.is_original else self.settled()

    def settled(self) -> Tensor:
        """Return the real image, which this one stands for from now on even if it is written into."""
        self.tape.is_needed()
        image = real(self)
        self.tape.lend(image)
        state = self.tape.state._replace(strided=not image.is_contiguous())
        self.tape = Tape(image, state)
        self.tape.settled = True
        return image

    def standing_for(self, image: Tensor) -> Any:
        """Return what stands for a real image that this one's stack has given to code."""
        made = (RecordingMask if image.ndim == 2 else RecordingTensor).of(
            Tape(image, self.tape.state._replace(strided=not image.is_contiguous()))
        )
        made.tape.settled = True
        return made

    def strides(self) -> Strides:
        """Return the strides that the real image has without the remedy."""
        return strides_of(self.tape)

    def apart(self) -> Any:
        """Return an image with the same pixels that shares no memory with this one."""
        return self.of(self.tape.apart())

    def as_it_is(self) -> Any:
        """Return an image with the same pixels in the same memory, which cannot be used if this one is written into."""
        return self.of(self.tape.copy())

    def singles(self) -> Iterator[Any]:
        """Yield the single images that it consists of."""
        yield self

    def as_images(self) -> Any:
        """Return an image, or a stack of images, with the same pixels.

        Raises:
            NotRecordable: it consists of no images.
        """
        return self

    def images_or_pixels(self) -> Any:
        """Return the same, or the real tensor where a sample is trained on that consists of no images."""
        try:
            return self.as_images()
        except NotRecordable as error:
            session.settles(error)
        return self.settled()

    def to(self, *args: Any, **kwargs: Any) -> Any:
        if not session.active:
            return self.pixels().to(*args, **kwargs)
        dtype = kwargs.pop("dtype", args[0] if args and isinstance(args[0], torch.dtype) else None)
        if kwargs or len(args) > 1 or dtype is None:
            session.settles(NotRecordable("an image is moved before the loader hands it over"))
            return self.settled().to(*args, **({**kwargs, "dtype": dtype} if dtype not in (None, *args) else kwargs))
        if dtype == self.dtype and type(self) in (RecordingStack, RecordingTensor):
            return self
        return record_any(self, "to_dtype", F.to_dtype, (dtype,), {})

    def __repr__(self, **kwargs: Any) -> str:
        if not session.active:
            return repr(self.pixels())
        session.settles(NotRecordable("an image is printed"))
        return str(self.settled().__repr__(**kwargs))

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not session.active:
            return itself, (self.pixels(),)
        session.settles(NotRecordable("an image is pickled or copied before its batch is complete"))
        return itself, (self.settled(),)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not session.active:
            args, kwargs = tree_map_only(Unreadable, lambda image: image.lasting(), (args, kwargs or {}))
            return func(*args, **kwargs)
        try:
            answer = ANSWERS.get(func)
            if answer is None:
                raise NotRecordable(needs_pixels(_name(func)))
            return answer(*args, **kwargs or {})
        except NotRecordable as error:
            session.settles(error)
        except (TypeError, IndexError, AttributeError) as error:  # torch raises its own
            session.settles(NotRecordable(f"{_name(func)}: {error}"))
        args, kwargs = tree_map_only(Unreadable, lambda image: image.settled(), (args, kwargs or {}))
        return func(*args, **kwargs)


class RecordingTensor(Unreadable, torch.Tensor):  # type: ignore[misc]
    stands_for = torch.Tensor


class RecordingImage(Unreadable, tv_tensors.Image):  # type: ignore[misc]
    stands_for = tv_tensors.Image


class RecordingMask(Unreadable, tv_tensors.Mask):  # type: ignore[misc]
    stands_for = tv_tensors.Mask
    dimensions = (2, 3)


class RecordingStack(Unreadable, torch.Tensor):  # type: ignore[misc]
    """Result of ``torch.stack`` on recording images or such stacks: a batch, or the crops of one image.

    ``mixes`` holds the functions of :mod:`pipediag.replay.ops.mixing` applied since, with their weight or box.
    """

    stands_for = torch.Tensor
    parts: list[Any]
    memory_layout: Layout

    @staticmethod
    def made_of(parts: list[Any]) -> Any:
        shape, dtype, *_ = parts[0].tape.state
        for k, part in enumerate(parts):
            if not isinstance(part, Unreadable):
                raise NotRecordable("images are stacked with something that is no recorded image")
            state = part.tape.state
            if state.shape != shape:
                sizes = f"{[*shape]} at entry 0 and {[*state.shape]} at entry {k}"
                raise RuntimeError(f"stack expects each tensor to be equal size, but got {sizes}")
            if state.dtype != dtype:
                raise NotRecordable(f"images of dtype {dtype} and {state.dtype} are stacked")
            if part.mixes:
                raise NotRecordable("mixed batches are stacked")
        whole = (len(parts), *shape)
        layouts = tuple(part.memory_layout for part in parts if part.memory_layout is not None)
        lies = len(layouts) == len(parts) and any(one.made_of or one.calls for one in layouts)
        return RecordingStack._with(parts, whole, dtype, (), Layout(whole, dtype, layouts if lies else ()))

    def laid(self, strides: Strides) -> Any:
        """Return the stack itself, which has these strides without the remedy."""
        self.memory_layout = Layout(tuple(self.shape), self.dtype, strides)
        return self

    def pixels(self) -> Tensor:
        stacked = torch.stack([part.pixels().as_subclass(Tensor) for part in self.parts])
        for how, value in self.mixes:
            stacked = getattr(mixing, how)(stacked, value)
        return stacked

    @classmethod
    def _with(cls, parts: list[Any], shape: tuple[int, ...], dtype: torch.dtype, mixes: Any, layout: Layout) -> Any:
        stack = cls.of(Tape(None, State(shape, dtype)))
        stack.parts, stack.mixes, stack.memory_layout = parts, mixes, layout
        return stack

    def settled(self) -> Tensor:
        """Return the real images, which the parts stand for from now on even if they are written into."""
        for image in self.singles():
            image.tape.is_needed()
        images = real(self)
        self.parts = [part.standing_for(image) for part, image in zip(self.parts, images, strict=True)]
        self.mixes, self.memory_layout = (), Layout(tuple(images.shape), images.dtype, images.stride())
        return images

    def standing_for(self, image: Tensor) -> Any:
        stack = RecordingStack.made_of([part.standing_for(one) for part, one in zip(self.parts, image, strict=True)])
        return stack.laid(image.stride())

    def singles(self) -> Iterator[Any]:
        for part in self.parts:
            yield from part.singles()

    def as_images(self) -> Any:
        self.parts = [part.as_images() for part in self.parts]
        return self

    def each(self, change: Callable[[Any], Any], call: Call) -> Any:
        """Return the stack of what ``change`` gives for each part, which is what ``call`` gives for the stack.

        Raises:
            NotRecordable: the batch has been mixed.
        """
        if self.mixes:
            raise NotRecordable("a mixed batch is changed once more")
        before = len(next(self.as_images().singles()).tape.ops)
        made = RecordingStack.made_of([change(part) for part in self.parts])
        kinds = tuple(op.kind for op in next(made.singles()).tape.ops[before:])
        layout = self.memory_layout._replace(calls=(*self.memory_layout.calls, (call, kinds)))
        return self._with(made.parts, made.tape.state.shape, made.dtype, (), layout)

    def mixed(self, how: str, value: Any) -> Any:
        """Return the batch after one more mix."""
        return self._with(
            self.parts, self.tape.state.shape, self.dtype, (*self.mixes, (how, value)), self.memory_layout
        )

    def strides(self) -> Strides:
        return contiguous(tuple(self.shape)) if self.mixes else strides_of_stack(self.memory_layout)

    def apart(self) -> Any:
        return self._of([part.apart() for part in self.parts])

    def as_it_is(self) -> Any:
        if self.mixes:
            raise NotRecordable("a mixed batch is rearranged")
        return self._of([part.as_it_is() for part in self.parts])

    def _of(self, parts: list[Any]) -> Any:
        """Return a stack like this one of other parts."""
        return self._with(parts, self.tape.state.shape, self.dtype, self.mixes, self.memory_layout)


class RecordingVideo(RecordingStack, tv_tensors.Video):  # type: ignore[misc]
    stands_for = tv_tensors.Video


#: Readable names for operations that users write as syntax.
_SPOKEN = {"__getitem__": "indexing", "__setitem__": "writing by an index"}


def _name(func: Any) -> str:
    owner = getattr(getattr(func, "__self__", None), "__name__", "")  # the getter of a property
    return str(owner or getattr(func, "__name__", func))


def needs_pixels(name: str) -> str:
    """Return why an operation is not recorded, and what to write in its place if anything does the same."""
    what = f"{_SPOKEN.get(name, name)} would need the pixels of an image"
    return f"{what}: {next((hint for names, hint in _INSTEAD.items() if name in names), ELSEWHERE)}"


#: What to write in place of what is not recorded.
_INSTEAD = {
    ("__getitem__", "narrow", "select"): "crop with torchvision.transforms.v2.functional.crop",
    ("permute", "transpose", "movedim", "flatten", "reshape", "view", "unsqueeze", "squeeze"): (
        "change the order of dimensions on the batch, behind the loader"
    ),
    ("cat", "concat", "concatenate", "written"): "join recorded images only, or do it on the batch, behind the loader",
    ("flip", "fliplr", "flipud"): "flip with torchvision.transforms.v2.functional.horizontal_flip or vertical_flip",
    ("interpolate", "grid_sample"): "resize with torchvision.transforms.v2.functional.resize",
    ("numpy", "__array__"): "use torchvision's functions of tensors in place of numpy's, or numpy's before them",
    ("type", "half"): "convert with torchvision.transforms.v2.functional.to_dtype",
}
ELSEWHERE = "do it before the transforms, or on the batch, behind the loader"


def stacked(parts: Sequence[Any]) -> Any:
    """Return the stack of images, some of which may be real, which shares no memory with them."""
    alike = (part.apart() if isinstance(part, Unreadable) else as_recorded(part) for part in parts)
    return RecordingStack.made_of([*alike])


def as_recorded(image: Any) -> Any:
    """Return what stands for a real image, as it is now, among recorded ones; anything else unchanged.

    Chance may leave a sample out of the only call by which its image would be recorded.
    """
    if not any(type(image) is cls.stands_for for cls in TENSORS):
        return image
    copy = copied(image)
    made = stand_in(copy)
    made = stand_in_for_stack(copy) if made is None else made
    return image if made is None else made


def _written(image: Any, index: Any, value: Any) -> None:
    """Record ``image[:, top:bottom, left:right] = value`` as erasing a box."""
    image = image.as_images()
    if isinstance(image, RecordingStack):
        raise NotRecordable(needs_pixels("__setitem__"))
    shape, dtype, _, mask, *_ = image.tape.state
    as_box = isinstance(index, tuple) and len(index) == 3 and not mask  # torchvision erases no masks
    box = box_of(index, shape) if as_box else None
    value = value.clone() if isinstance(value, Tensor) else value
    if isinstance(value, (int, float)):
        value = torch.full((1, 1, 1), value, dtype=dtype)
    if box is None or not isinstance(value, Tensor) or not _fits(value, shape[0], box[2:], dtype):
        raise NotRecordable(needs_pixels("__setitem__"))
    record(image, "erase", F.erase, (*box, value, True), {})


def box_of(index: Any, shape: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """Return the box (top, left, height, width) that an index selects in all channels of all images, or None."""
    parts = index if isinstance(index, tuple) else (index,)
    for k in [k for k, part in enumerate(parts) if part is Ellipsis][:1]:
        parts = (*parts[:k], *[slice(None)] * (len(shape) - len(parts) + 1), *parts[k + 1 :])
    parts = (*parts, *[slice(None)] * (len(shape) - len(parts)))
    if len(shape) < 3 or len(parts) != len(shape) or not all(isinstance(part, slice) for part in parts):
        return None
    *others, rows, columns = (range(*part.indices(side)) for part, side in zip(parts, shape, strict=True))
    whole = all(other == range(side) for other, side in zip(others, shape, strict=False))
    if not whole or {rows.step, columns.step} != {1} or not (rows and columns):
        return None
    return rows.start, columns.start, len(rows), len(columns)


def _fits(value: Tensor, channels: int, box: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Return whether an op can carry the value: one for each channel, or float32 pixels of the whole box."""
    alike = value.dtype == dtype and value.is_cpu and not value.requires_grad
    each_pixel = value.shape == (channels, *box) and dtype in (torch.float32, torch.uint8)
    return alike and (each_pixel or tuple(value.shape) in ((1, 1, 1), (channels, 1, 1)))


ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__setitem__: _written,
    torch.is_tensor: lambda image: True,
    torch.is_floating_point: lambda image: image.dtype.is_floating_point,
    torch.numel: lambda image: image.numel(),
    torch.Tensor.requires_grad.__get__: lambda image, *_: False,
    torch.Tensor.is_cuda.__get__: lambda image, *_: False,
    torch.Tensor.is_sparse.__get__: lambda image, *_: False,
    torch.Tensor.layout.__get__: lambda image, *_: torch.strided,
    torch.Tensor.double: lambda image: image.cpu().to(torch.float64),
    torch.Tensor.long: lambda image: image.cpu().to(torch.int64),
    torch.Tensor.int: lambda image: image.cpu().to(torch.int32),
    torch.Tensor.byte: lambda image: image.cpu().to(torch.uint8),
}


def _computed(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return what records a method of tensors as the functional ``name``."""

    def compute(image: Any, *args: Any, **kwargs: Any) -> Any:
        # In a transform's own link it stays code of the user's, which is proven as a whole.
        if not isinstance(image, Unreadable) or session.calls is None:
            raise NotRecordable(needs_pixels(name))
        plain = type(image) in (RecordingTensor, RecordingStack)
        if fn not in _IN_PLACE and not plain:
            image = image.as_subclass(Tensor)
        made = record_any(image, name, fn, args, kwargs)
        return made.as_subclass(Tensor) if fn in _IN_PLACE and made is image and not plain else made

    return compute


_METHODS = {
    "add": ("add", "__add__", "__radd__"),
    "sub": ("sub", "subtract", "__sub__"),
    "rsub": ("__rsub__",),
    "mul": ("mul", "multiply", "__mul__", "__rmul__"),
    "div": ("div", "divide", "true_divide", "__truediv__"),
    "clamp": ("clamp", "clip"),
}
_WRITING = {
    "add": ("add_", "__iadd__"),
    "sub": ("sub_", "__isub__"),
    "mul": ("mul_", "__imul__"),
    "div": ("div_", "__itruediv__"),
    "clamp": ("clamp_", "clip_"),
}
_IN_PLACE = frozenset(getattr(Tensor, method) for methods in _WRITING.values() for method in methods)
for _table in (_METHODS, _WRITING):
    for _of, _methods in _table.items():
        for _method in _methods:
            ANSWERS[getattr(Tensor, _method)] = _computed(_of, getattr(Tensor, _method))
ANSWERS.update({getattr(torch, name): _computed(name, getattr(torch, name)) for name in ("add", "sub", "mul", "div")})
ANSWERS[torch.clamp] = _computed("clamp", torch.clamp)


def _of_its_form(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls ``fn``, which reads no pixel, with tensors of the images' form."""
    beside = fn in _AS_ANOTHER  # it reads the pixels of its first argument

    def call(*args: Any, **kwargs: Any) -> Any:
        if session.calls is None or (beside and isinstance(args[0], Unreadable)):
            raise NotRecordable(needs_pixels(_name(fn)))
        return fn(*tree_map_only(Unreadable, form_of, args), **tree_map_only(Unreadable, form_of, kwargs))

    return call


def form_of(image: Any, device: str = "cpu") -> Tensor:
    """Return a tensor of the shape, strides and dtype of a recording image or a tensor; on "meta" without memory."""
    strides = image.strides() if isinstance(image, Unreadable) else image.stride()
    return torch.empty_strided(tuple(image.shape), strides, dtype=image.dtype, device=device)


_LIKE = ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")
_AS_ANOTHER = frozenset(getattr(Tensor, name) for name in ("expand_as", "view_as", "reshape_as", "type_as"))
for _fn in (*(getattr(torch, name) for name in _LIKE), *(getattr(Tensor, name) for name in _NEW), *_AS_ANOTHER):
    ANSWERS[_fn] = _of_its_form(_fn)

TENSORS = (RecordingTensor, RecordingImage, RecordingMask)


def itself(image: Any) -> Any:
    """Return the image: recorded in place of a call that changes only the type."""
    return image


def retyped(image: Any, cls: type) -> Any:
    """Return a recording image that stands for the same pixels in a tensor of type ``cls``."""
    return _STANDING_FOR.get(cls, RecordingStack)._retyped(image)


def stand_in_for_stack(value: Any) -> Any:
    """Return a stack of recording images for the frames of a video or a batch ``(N, C, H, W)``; otherwise None."""
    video = type(value) is tv_tensors.Video
    if not (video or type(value) is Tensor) or value.ndim != 4 or value.requires_grad or not value.is_cpu:
        return None
    if 0 in value.shape or _is_arrays(value):
        return None
    stack = RecordingStack.made_of([stand_in(frame) for frame in value.as_subclass(Tensor)])
    stack.laid(value.stride())
    if not video:
        return stack
    return RecordingVideo._with(stack.parts, stack.tape.state.shape, stack.dtype, (), stack.memory_layout)


def is_recording(value: Any) -> bool:
    return isinstance(value, (Unreadable, RecordingPicture))


def real(image: Any) -> Any:
    """Return the real image for a recording image, of the type that it stands for."""
    with session.idle():
        pixels = decoded(image.pixels() if isinstance(image, Unreadable) else image.tape.pixels())
    alike = not isinstance(image, Unreadable) or type(pixels) is image.stands_for
    return pixels if alike else pixels.as_subclass(image.stands_for)


def stand_in(value: Any) -> Any:
    """Return a recording image for a tensor ``(C, H, W)``, a mask ``(H, W)`` too, or a Pillow image; otherwise None."""
    if isinstance(value, PIL.Image.Image):
        if value.mode not in BANDS:
            return None
        state = State((BANDS[value.mode], value.height, value.width), torch.uint8)
        source = _seen(value, value.copy)
        session.stood += 1
        return RecordingPicture.of(Tape(value, state, lasting(value) if source is value else source))
    cls = next((cls for kind, cls in _STANDING_FOR.items() if kind is type(value)), None)
    if cls is None or value.requires_grad or not value.is_cpu:
        return None
    shape = tuple(value.shape)
    if len(shape) not in cls.dimensions or 0 in shape:
        return None
    state = state_of((shape, value.dtype, cls is RecordingMask, not value.is_contiguous(), True))
    session.stood += 1
    twin = value.clone if isinstance(value, UndecodedTensor) else partial(copied, value)
    source = _seen(value, twin)
    if source is value and _is_arrays(value):
        source = twin()
    return cls.of(Tape(value, state, source))


def _is_arrays(image: Tensor) -> bool:
    """Return whether the image's memory may be an array's, or other processes': writing there counts no version."""
    with torch._C.DisableTorchFunctionSubclass():
        return not isinstance(image, UndecodedTensor) and not image.untyped_storage().resizable()


_STANDING_FOR: dict[type, type[Unreadable]] = {
    **{cls.stands_for: cls for cls in TENSORS},
    UndecodedTensor: RecordingTensor,
    UndecodedImage: RecordingImage,
}


def _seen(value: Any, copied: Callable[[], Any]) -> Any:
    """Return the source for the tape: the value, or a copy if the dataset overwrites it."""
    if session.seen is not None:
        session.seen.append((value, copied()))
    return copied() if session.copies else value


def blank(cls: type) -> Any:
    """Return a recording image without a tape, which can only be passed on."""
    return _subclass(cls, _EMPTY)


def record(
    image: Any, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fixed: bool = True
) -> Any:
    """Return the image after a functional call, and write the call to its tape.

    Where a sample is trained on, a call that cannot be recorded runs on the pixels.
    """
    try:
        return _recorded(image, name, fn, args, kwargs, fixed)
    except NotRecordable as error:
        if not image.tape.is_current:
            raise
        session.settles(error)
    return on_pixels(image, fn, args, kwargs)


def record_each(
    stack: Any, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fixed: bool = True
) -> Any:
    """The same for a stack of images: torchvision's functions give each what they give it alone."""
    functional, call = FUNCTIONALS[name], Call(fn, args, kwargs)
    try:
        if functional.draws or functional.several or session.dictation is not None:
            raise NotRecordable(f"{name} of several images at once is not recorded, only of one image at a time")
        made = stack.each(lambda part: _record_part(part, name, call, fixed), call)
        if not _is_in_place(functional, fn, args, kwargs):
            return made
        for part, after in zip(stack.singles(), made.singles(), strict=True):  # other stacks may hold the part too
            part.tape.note_writing()
            part.tape = after.tape
        return stack
    except NotRecordable as error:
        session.settles(error)
    return on_pixels(stack, fn, args, kwargs)


def _record_part(part: Any, name: str, call: Call, fixed: bool) -> Any:
    if isinstance(part, RecordingStack):
        return part.each(lambda inner: _record_part(inner, name, call, fixed), call)
    after = _tape_after(part, FUNCTIONALS[name], call.fn, call.args, call.kwargs, fixed)
    return part if after is part.tape else part.of(after)


def record_any(image: Any, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    image = image.images_or_pixels()
    if not isinstance(image, Unreadable):
        return fn(image, *args, **kwargs)
    return (record_each if isinstance(image, RecordingStack) else record)(image, name, fn, args, kwargs)


def _recorded(
    image: Any, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fixed: bool
) -> Any:
    if session.dictation is not None:
        session.dictation.append((name, Call(fn, args, kwargs)))
        return image
    tape, functional = image.tape, FUNCTIONALS[name]
    if functional.several:
        parts, _ = _ops_of(image, functional, fn, args, kwargs, fixed)
        return tuple(image.of(tape.then(part, fn, args, kwargs, k)) for k, part in enumerate(parts))
    after = _tape_after(image, functional, fn, args, kwargs, fixed)
    if after is tape:
        return image
    if not _is_in_place(functional, fn, args, kwargs):
        return image.of(after)
    tape.note_writing()
    image.tape = after
    return image


def _tape_after(
    image: Any,
    functional: Functional,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fixed: bool,
) -> Tape:
    """Return the tape of an image after a call; the same one if the call returns the image itself.

    Raises:
        NotRecordable: the call is not recorded, or would write into the dataset's own image.
    """
    tape: Tape = image.tape
    drawn_from = torch.get_rng_state() if functional.draws else None
    ops, unchanged = _ops_of(image, functional, fn, args, kwargs, fixed)
    if unchanged and not ops and session.calls is not None:
        return tape
    after = tape.then(ops, fn, args, kwargs, drawn_from=drawn_from)
    is_own = isinstance(tape.source, Tensor) and all(op.kind.operation.is_view for op in tape.ops)
    if is_own and _is_in_place(functional, fn, args, kwargs):
        raise NotRecordable("the dataset's own image is written into")
    return after


def _ops_of(
    image: Any,
    functional: Functional,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fixed: bool,
) -> tuple[Any, bool]:
    """Return the ops of a call, and whether it returns the image itself."""
    state = image.tape.state
    ops = encoded(functional.encode, state if fixed else state._replace(fixed=False), args, kwargs)

    def tried() -> tuple[Tensor, Any]:
        with session.idle(), session.beginning_at(None), torch.random.fork_rng(devices=()):
            zeros = torch.zeros(state.shape, dtype=state.dtype).as_subclass(image.stands_for)
            return zeros, fn(zeros, *args, **kwargs)

    of = image.stands_for, state.dtype, state.channels
    return ops, gives_itself(fn, of, args, kwargs, () if functional.several else ops, tried)


def _is_in_place(functional: Functional, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return writes(functional, args, kwargs) or fn in _IN_PLACE


def writes(functional: Functional, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call with these arguments writes into the image."""
    return functional.in_place is not None and bool(kwargs.get("inplace", False) or any(args[functional.in_place :]))
