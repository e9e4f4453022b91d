"""Provide recording images, which pass through the user's own transforms in place of pixels and record the calls.

A recording image has a shape and a dtype, but no pixels. torchvision's dispatcher and the user's ``isinstance`` accept
it as the type that it stands for: a tensor, a ``tv_tensors.Image``, a ``tv_tensors.Mask`` or a Pillow image
(:mod:`.pictures`). A functional call on it is recorded with the parameters that the user's own code drew. Any other
operation that needs pixels raises :class:`NotRecordable`. Outside a recording, a recording image that user code has
kept behaves as the real image.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from ..decode.undecoded import UndecodedImage, UndecodedTensor, decoded
from ..layout import Strides, contiguous, laid
from ..ops import mixing
from ..ops.op import NotRecordable, State
from .call import Call, itself
from .functional_calls import record, record_each
from .session import session
from .strides import Layout, strides_of, strides_of_stack
from .tape import Tape

_EMPTY = torch.empty(0, device="meta")
_subclass = torch.Tensor._make_subclass


def or_real(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method that code calls go on with the real image where the call is not recorded."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if session.active and not self.is_settled:
                return method(self, *args, **kwargs)
        except NotRecordable as error:
            session.settles(error)
        image = self.settled()
        made = getattr(image, method.__name__)(*args, **kwargs)
        return self if made is image else made

    return call


class Unreadable:
    """Base class of recording images except pictures."""

    tape: Tape  # the calls so far
    stands_for: ClassVar[type]  # the type of the real image
    dimensions: ClassVar[tuple[int, ...]] = (3,)  # possible numbers of dimensions
    mixes: tuple[tuple[str, Any], ...] = ()  # see :class:`RecordingStack`
    memory_layout: Layout | None = None  # how several images lie in memory without the remedy; None for a single one
    #: What torch's functions and the methods of tensors give for it (:mod:`.answers`).
    answers: ClassVar[dict[Any, Callable[..., Any]]] = {}

    @classmethod
    def of(cls, tape: Tape) -> Any:
        image = blank(cls)
        image.tape = tape
        return image

    @classmethod
    def wrap(cls, image: Any, like: Any, **kwargs: Any) -> Any:
        """Convert ``image`` to this type, as torchvision does with the result of an op."""
        return cls._retyped(image)

    def typed(self, cls: type) -> Any:
        """Return an image of another type with the same pixels.

        Raises:
            NotRecordable: that is not recorded.
        """
        return retyped(self, cls)

    @or_real
    def as_subclass(self, cls: type) -> Any:
        return self.typed(cls)

    @classmethod
    def _retyped(cls, image: Any) -> Any:
        if not isinstance(image, TENSORS) or cls not in TENSORS:
            raise NotRecordable("an image is given another type")
        state = image.tape.state._replace(mask=cls is RecordingMask)
        return cls.of(image.tape.then([], itself, state=state))

    @property
    def _form(self) -> State | Tensor:
        """What has its shape and dtype: the real image if code has it, and may change both in place."""
        return self.settled() if self.is_settled else self.tape.state

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._form.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self._form.dtype

    @property
    def ndim(self) -> int:
        return len(self._form.shape)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that code has given to the real image."""
        if name not in _OURS and (self.tape.settled or self.tape.is_original) and hasattr(self.tape.given, name):
            return getattr(self.tape.given, name)
        raise AttributeError(f"{self.stands_for.__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OURS:
            object.__setattr__(self, name, value)
            return
        if session.active:
            session.settles(NotRecordable(f"{name!r} of an image is set"))
        setattr(self.settled(), name, value)

    def size(self, dim: int | None = None) -> Any:
        if dim is not None and not -self.ndim <= dim < self.ndim:
            low, high = -self.ndim, self.ndim - 1
            raise IndexError(f"Dimension out of range (expected to be in range of [{low}, {high}], but got {dim})")
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return math.prod(self._form.shape)

    def __len__(self) -> int:
        return int(self._form.shape[0])

    def is_floating_point(self) -> bool:
        return bool(self.dtype.is_floating_point)

    def detach(self) -> Any:
        return self.settled().detach() if self.is_settled else self

    @or_real
    def contiguous(self, *args: Any, **kwargs: Any) -> Any:
        """Return a plain tensor, as most methods of torchvision's types do; the image itself if it is one."""
        if not isinstance(self, RecordingStack):
            state, copies = self.tape.state._replace(mask=False), self.strides() != contiguous(tuple(self.shape))
            if not copies and not args and not kwargs and type(self) is RecordingTensor:
                return self
            return RecordingTensor.of(self.tape.then([], Tensor.contiguous, args, kwargs, state=state, copies=copies))
        if args or kwargs:
            raise NotRecordable("a batch is given another layout")
        return self.plain() if self.strides() == contiguous(tuple(self.shape)) else self._made_contiguous()

    @or_real
    def cpu(self, *_: Any, **__: Any) -> Any:
        return self.plain()

    def plain(self) -> Any:
        """Return the image as a plain tensor, as most methods of tensors do."""
        return self if type(self) in (RecordingStack, RecordingTensor) else self.typed(Tensor)

    def float(self) -> Any:
        return self.cpu().to(torch.float32)

    def pixels(self) -> Tensor:
        """Return the real image, in the memory that it shares with others."""
        with session.idle():
            image: Tensor = self.tape.pixels()
            return image

    def settled(self) -> Tensor:
        """Return the real image, which this one stands for from now on: always the same one."""
        if not self.tape.settled:
            self.tape.is_needed()
            with session.idle():
                self.becomes(real(self))
        image: Tensor = self.tape.given
        return image

    @property
    def is_settled(self) -> bool:
        """True if it stands for a real image that code has."""
        return self.tape.settled

    def becomes(self, image: Tensor) -> None:
        """Stand for this real image from now on."""
        self.tape = self._tape_of(image)

    def standing_for(self, image: Tensor) -> Any:
        """Return what stands for a real image that this one's stack has given to code."""
        return (RecordingMask if image.ndim == 2 else RecordingTensor).of(self._tape_of(image))

    def _tape_of(self, image: Tensor) -> Tape:
        return Tape.of_real(image, self.tape.state._replace(strided=not image.is_contiguous()))

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

    def record(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fixed: bool = True
    ) -> Any:
        """Return the result of a functional call on these images, and record it."""
        return record(self, name, fn, args, kwargs, fixed)

    def recorded(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the same, also of what is no image yet (:meth:`as_images`)."""
        image = self.images_or_pixels()
        if not isinstance(image, Unreadable):
            return fn(image, *args, **kwargs)
        return image.record(name, fn, args, kwargs)

    @or_real
    def to(self, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype", args[0] if args and isinstance(args[0], torch.dtype) else None)
        if kwargs.keys() - {"dtype"} or len(args) + len(kwargs) > 1 or dtype is None:
            raise NotRecordable("an image is moved before the loader hands it over")
        if dtype == self.dtype and type(self) in (RecordingStack, RecordingTensor):
            return self
        return self.recorded("to_dtype", F.to_dtype, (dtype,), {})

    def __repr__(self, **kwargs: Any) -> str:
        if not session.active:
            return repr(self.pixels())
        session.settles(NotRecordable("an image is printed"))
        return str(self.settled().__repr__(**kwargs))

    def __reduce_ex__(self, protocol: Any) -> Any:
        if session.active:
            session.settles(NotRecordable("an image is pickled or copied before its batch is complete"))
        return self.settled().__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        alone = args[0] if len(args) == 1 and not kwargs else None
        if not session.active or (isinstance(alone, Unreadable) and alone.is_settled):
            return _on_real(func, args, kwargs or {})
        try:
            answer = cls.answers.get(func)
            if answer is None:
                raise NotRecordable(needs_pixels(name_of(func)))
            return answer(*args, **kwargs or {})
        except NotRecordable as error:
            session.settles(error)
        except (TypeError, IndexError, AttributeError) as error:  # torch raises its own
            session.settles(NotRecordable(f"{name_of(func)}: {error}"))
        return _on_real(func, args, kwargs or {})


def _on_real(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what a function makes of the real images."""
    args, kwargs = tree_map_only(Unreadable, lambda image: image.settled(), (args, kwargs))
    return func(*args, **kwargs)


#: Attributes of recording images themselves.
_OURS = frozenset(
    {"__class__", "tape", "parts", "mixes", "memory_layout", "call", "like", "images", "made", "lay", "is_alone"}
)


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
    def made_of(parts: list[Any], strides: Strides | None = None) -> Any:
        """Return the stack of these images or stacks; ``strides`` are its own, if not those that ``torch.stack`` gives.

        Raises:
            NotRecordable: it is not recorded.
        """
        if not all(isinstance(part, Unreadable) for part in parts):
            raise NotRecordable("images are stacked with something that is no recorded image")
        shape, dtype, *_ = parts[0].tape.state
        for k, part in enumerate(parts):
            state = part.tape.state
            if state.shape != shape:
                sizes = f"{[*shape]} at entry 0 and {[*state.shape]} at entry {k}"
                raise RuntimeError(f"stack expects each tensor to be equal size, but got {sizes}")
            if state.dtype != dtype:
                raise NotRecordable(f"images of dtype {dtype} and {state.dtype} are stacked")
            if part.mixes:
                raise NotRecordable("mixed batches are stacked")
        whole = (len(parts), *shape)
        if strides is not None:
            return RecordingStack._with(parts, whole, dtype, (), Layout(whole, dtype, strides))
        layouts = tuple(part.memory_layout for part in parts if part.memory_layout is not None)
        lies = len(layouts) == len(parts) and any(one.made_of or one.calls for one in layouts)
        return RecordingStack._with(parts, whole, dtype, (), Layout(whole, dtype, layouts if lies else ()))

    def laid(self, strides: Strides) -> Any:
        """Return the stack itself, which has these strides without the remedy."""
        self.memory_layout = Layout(tuple(self.shape), self.dtype, strides)
        self._lies_in(None)
        return self

    def pixels(self) -> Tensor:
        """Return the real images, in the memory that they share with others, if one tensor can hold them."""
        stacked = None
        if all(isinstance(part, TENSORS) for part in self.parts):
            with session.idle():
                stacked = Tape.stacked([part.tape for part in self.parts])
        if stacked is None:
            parts = [part.pixels().as_subclass(Tensor) for part in self.parts]
            stacked = parts[0][None] if len(parts) == 1 else torch.stack(parts)
            if not self.mixes:
                stacked = laid(stacked, self.strides())
        for how, value in self.mixes:
            stacked = getattr(mixing, how)(stacked, value)
        return stacked

    @classmethod
    def _with(cls, parts: list[Any], shape: tuple[int, ...], dtype: torch.dtype, mixes: Any, layout: Layout) -> Any:
        stack = cls.of(Tape(None, State(shape, dtype)))
        stack.parts, stack.mixes, stack.memory_layout = parts, mixes, layout
        stack._lies_in(None)
        return stack

    def _lies_in(self, given: Tensor | None) -> None:
        """Note that the images are rows of this stack's memory, which is that of a real one if ``given``."""
        if all(isinstance(part, TENSORS) for part in self.parts):
            strides = functools.partial(strides_of_stack, self.memory_layout)
            Tape.stack([part.tape for part in self.parts], given, strides)

    def settled(self) -> Tensor:
        """Return the real images, which the parts stand for from now on even if they are written into."""
        for image in self.singles():
            image.tape.is_needed()
        with session.idle():
            images = real(self)
            self.becomes(images)
        return images

    def becomes(self, image: Tensor) -> None:
        self.parts = self._parts_of(image)
        self._lies_in(image)
        self.mixes, self.memory_layout = (), Layout(tuple(image.shape), image.dtype, image.stride())

    def standing_for(self, image: Tensor) -> Any:
        stack = RecordingStack.made_of(self._parts_of(image), image.stride())
        stack._lies_in(image)
        return stack

    def _parts_of(self, images: Tensor) -> list[Any]:
        return [part.standing_for(image) for part, image in zip(self.parts, images, strict=True)]

    def singles(self) -> Iterator[Any]:
        for part in self.parts:
            yield from part.singles()

    def as_images(self) -> Any:
        self.parts = [part.as_images() for part in self.parts]
        return self

    def record(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fixed: bool = True
    ) -> Any:
        return record_each(self, name, fn, args, kwargs, fixed)

    def each(self, change: Callable[[Any], Any], call: Call) -> Any:
        """Return the stack of what ``change`` gives for each image, which is what ``call`` gives for the stack.

        Raises:
            NotRecordable: the batch has been mixed.
        """
        if self.mixes:
            raise NotRecordable("a mixed batch is changed once more")
        before = len(next(self.as_images().singles()).tape.ops)
        parts = [part.each(change, call) if isinstance(part, RecordingStack) else change(part) for part in self.parts]
        kinds, state = tuple(op.kind for op in next(parts[0].singles()).tape.ops[before:]), parts[0].tape.state
        layout = self.memory_layout._replace(calls=(*self.memory_layout.calls, (call, kinds)))
        return self._with(parts, (len(parts), *state.shape), state.dtype, (), layout)

    def _made_contiguous(self) -> Any:
        return RecordingStack.made_of([part.apart() for part in self.parts], contiguous(tuple(self.shape)))

    def mixed(self, how: str, value: Any) -> Any:
        """Return the batch after one more mix."""
        made = self.apart()
        made.mixes = (*self.mixes, (how, value))
        return made

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


def name_of(func: Any) -> str:
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


def form_of(image: Any, device: str = "cpu") -> Tensor:
    """Return a tensor of the shape, strides and dtype of a recording image or a tensor; on "meta" without memory."""
    strides = image.strides() if isinstance(image, Unreadable) else image.stride()
    return torch.empty_strided(tuple(image.shape), strides, dtype=image.dtype, device=device)


TENSORS = (RecordingTensor, RecordingImage, RecordingMask)
STANDING_FOR: dict[type, type[Unreadable]] = {
    **{cls.stands_for: cls for cls in TENSORS},
    UndecodedTensor: RecordingTensor,
    UndecodedImage: RecordingImage,
}


def blank(cls: type) -> Any:
    """Return a recording image without a tape, which can only be passed on."""
    image = _subclass(cls, _EMPTY)
    session.note_made(image)
    return image


def retyped(image: Any, cls: type) -> Any:
    """Return a recording image that stands for the same pixels in a tensor of type ``cls``."""
    return STANDING_FOR.get(cls, RecordingStack)._retyped(image)


def real(image: Any) -> Any:
    """Return the real image for a recording image, of the type that it stands for."""
    with session.idle():
        pixels = decoded(image.pixels() if isinstance(image, Unreadable) else image.tape.pixels())
        alike = not isinstance(image, Unreadable) or type(pixels) is image.stands_for
        return pixels if alike else pixels.as_subclass(image.stands_for)
