"""Hook functional calls: through torchvision's dispatcher, and by patching the functions that bypass it.

The dispatcher gets kernels for types of our own, permanently. The other functions are patched during a recording. They
handle all other images as before, and in a thread that records nothing all images.

Only the libraries' own functions are patched, also where a module has imported them by name. A function that user code
has put in place of one runs as it is, on the recording image. If it calls the original, which it took from the library
during a recording, that call is recorded, also in later recordings.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import PIL.Image
import torch
from PIL import ImageOps
from torch import Tensor
from torch._functorch import eager_transforms, vmap
from torch.utils._pytree import tree_map_only
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate, default_collate_fn_map
from torchvision import tv_tensors
from torchvision.transforms import functional as older
from torchvision.transforms.v2 import _augment, _auto_augment, _geometry, _misc
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2.functional import _utils as dispatch

from ...patches import SWAPPING, alive, beneath, is_native, live, preceded
from ..ops.families.pointwise import convert_image_dtype
from ..ops.op import NotRecordable
from ..ops.operation import Functional
from ..ops.table import FUNCTIONALS, METHODS, OF_PICTURES, OLDER
from .call import Call
from .colour_matrices import ANSWERS
from .images import (
    TENSORS,
    RecordingImage,
    RecordingMask,
    RecordingStack,
    RecordingTensor,
    RecordingVideo,
    Unreadable,
    needs_pixels,
)
from .pictures import OF_TWINS, RecordingPicture, enhancers, image_ops, own, recorded
from .plain_code import Calls, begun
from .session import on_pixels, session
from .substitutes import is_recording, stacked
from .views import RecordingView

_Function = Callable[..., Any]

#: Replacements for torchvision's functions that read metadata only.
_META = {
    "get_size": lambda image: list(image.tape.state.size),
    "get_dimensions": lambda image: [image.tape.state.channels, *image.tape.state.size],
    "get_num_channels": lambda image: image.tape.state.channels,
}


def _kernel(name: str, functional: _Function) -> _Function:
    return lambda image, *args, **kwargs: image.record(name, functional, args, kwargs)


def _of_images(functional: _Function) -> _Function:
    """Call a function for the images that a view consists of."""

    def call(view: Any, *args: Any, **kwargs: Any) -> Any:
        images = view.images_or_pixels()
        with nullcontext() if is_recording(images) else session.beginning_nowhere():
            return functional(images, *args, **kwargs)

    return call


def _collate(images: list[Any], *, collate_fn_map: Any = None) -> Any:
    if not session.active:  # recording images that user code has kept
        return default_collate([image.pixels() if is_recording(image) else image for image in images])
    try:
        stack = stacked(images)
    except NotRecordable as error:
        session.settles(error)
        return default_collate([image.settled() if is_recording(image) else image for image in images])
    if get_worker_info() is not None:  # torch stacks into memory that it shares, which is contiguous
        stack.laid(())
    return stack


@functools.cache
def register() -> None:
    """Register recording images with torchvision's dispatcher, torch's functions and torch's collate, in this process,
    permanently.

    This only adds entries for types of our own: it changes no other call.
    """
    Unreadable.answers = ANSWERS
    registry = dispatch._KERNEL_REGISTRY
    functionals = {functional.__name__: functional for functional in registry}  # whatever user code has put into F
    for kind in (*TENSORS, RecordingStack, RecordingVideo, RecordingView):
        default_collate_fn_map[kind] = _collate
    for name in FUNCTIONALS:
        if name not in functionals:  # not in this version of torchvision
            continue
        functional = functionals[name]
        known, kernel = registry[functional], _kernel(name, functional)
        if name in OF_PICTURES:
            known[RecordingPicture] = recorded(OF_PICTURES[name], functional)
        known[RecordingStack] = known[RecordingVideo] = kernel
        known[RecordingView] = _of_images(functional)
        for cls in TENSORS:
            # Record a mask if torchvision has a kernel for masks; otherwise let it pass through as torchvision does.
            if any(base in known for base in _dispatched(cls)):
                known[cls] = kernel
    for name, answer in _META.items():
        for cls in (*TENSORS, RecordingStack, RecordingVideo, RecordingView):
            registry[functionals[name]][cls] = answer


def _dispatched(cls: type) -> Iterator[type]:
    """Yield the types whose kernels torchvision would use for a ``cls``."""
    for base in cls.__mro__:
        if base is tv_tensors.TVTensor:
            return
        yield base


def _to_tensor(original: _Function) -> _Function:
    """Record ``to_tensor``: channels first, floats between 0 and 1."""

    def call(picture: Any) -> Any:
        tape = picture.tape
        ops = convert_image_dtype(tape.state, torch.get_default_dtype())
        return RecordingTensor.of(tape.then(ops, original, copies=True))

    return call


def _retyped(to: type) -> Callable[[_Function], _Function]:
    """Record a function that changes the type only, and of a picture makes a copy."""

    def make(original: _Function) -> _Function:
        def call(image: Any) -> Any:
            if isinstance(image, RecordingStack):
                raise NotRecordable("several images are given another type")
            return to.of(image.tape.then([], original, copies=image.tape.is_picture))  # type: ignore[attr-defined]

        return call

    return make


def _to_picture(*args: Any, **kwargs: Any) -> NoReturn:
    raise NotRecordable("an image is turned into a picture")


def _older(own: Functional, original: _Function) -> _Function:
    def call(image: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(image, RecordingStack):
            return image.record(own.name, original, args, kwargs, fixed=False)
        if own.in_place is None and isinstance(image, (RecordingImage, RecordingMask)):
            # These functions know plain tensors only, and return one unless they return the image itself.
            made = image.typed(Tensor).record(own.name, original, args, kwargs, fixed=False)
            if not is_recording(made):  # it needed pixels
                return made
            same = made.tape.state == image.tape.state._replace(mask=False) and made.tape.ops == image.tape.ops
            return image if same else made
        made = image.record(own.name, original, args, kwargs, fixed=False)
        computed = own.name == "normalize" and isinstance(made, (RecordingImage, RecordingMask))
        return made.as_subclass(Tensor) if computed else made

    return call


def _convert_image_dtype(original: _Function) -> _Function:
    def call(image: Any, dtype: torch.dtype = torch.float) -> Any:
        if dtype not in (image.dtype, torch.uint8) and not dtype.is_floating_point:
            raise NotRecordable(f"an image is converted to {dtype}")
        if isinstance(image, RecordingStack):
            return image.each(lambda part: call(part, dtype), Call(original, (dtype,), {}))
        ops = convert_image_dtype(image.tape.state, dtype)
        computed = ops and not (image.dtype.is_floating_point and dtype.is_floating_point)
        plain = computed and isinstance(image, (RecordingImage, RecordingMask))
        image = image.typed(Tensor) if plain else image
        return image.of(image.tape.then(ops, original, (dtype,)))

    return call


#: Makes a replacement for a library's own function.
_Make = Callable[[_Function], _Function]


def _always(answer: _Function) -> _Make:
    return lambda original: answer


def _patches() -> Iterator[tuple[Any, str, _Make]]:
    """Yield owner, name and replacement of each function outside the dispatcher."""
    for name, functional in OLDER.items():
        if hasattr(older, name):
            # Those in place take tensors only.
            encode = None if functional.in_place is not None else OF_PICTURES.get(functional.name)
            of_picture = functools.partial(recorded, encode) if encode else None
            yield older, name, _guarded(functools.partial(_older, functional), of_picture, begins=True)
    yield older, "convert_image_dtype", _guarded(_convert_image_dtype, None, begins=True)
    yield older, "get_dimensions", _guarded(_always(_META["get_dimensions"]), None)
    yield older, "get_image_num_channels", _guarded(_always(_META["get_num_channels"]), None)
    yield older, "get_image_size", _guarded(_always(lambda image: list(image.tape.state.size[::-1])), None)
    for module in (older, F):
        yield module, "to_tensor", _guarded(None, _to_tensor, begins=True)
        yield module, "pil_to_tensor", _guarded(None, _retyped(RecordingTensor), begins=True)
        yield module, "to_pil_image", _guarded(_always(_to_picture), None)
    yield F, "to_image", _guarded(_retyped(RecordingImage), _retyped(RecordingImage), begins=True)
    for name, replacement in image_ops().items():
        yield ImageOps, name, _guarded(None, replacement, begins=True)
    for module in (_geometry, _auto_augment):
        yield module, "_get_fill", _fill_of
    yield from enhancers(begun)
    for name in ("_ensure_mutable", "frombytes", "load"):
        yield PIL.Image.Image, name, functools.partial(preceded, action=own)
    for module, name in _PAST_HOOKS:
        if hasattr(module, name):
            yield module, name, _of_real_images
    yield _misc.ToDtype, "transform", _dtype_of
    yield _augment.MixUp, "transform", _mixing("mixup", "lam")
    yield _augment.CutMix, "transform", _mixing("cutmix", "box")


def _guarded(of_tensor: _Make | None, of_picture: _Make | None, begins: bool = False) -> _Make:
    """Return what replaces a function by the other functions for recording images; None: it handles them itself.

    ``begins`` says that a recording may begin at its calls on real images.
    """

    def make(original: _Function) -> _Function:
        functions: dict[type, _Function] = {}
        if of_tensor is not None:
            of_image = of_tensor(original)
            functions.update(dict.fromkeys((*TENSORS, RecordingStack, RecordingVideo), of_image))
            functions[RecordingView] = lambda view, *args, **kwargs: of_image(view.as_images(), *args, **kwargs)
        if of_picture is not None:
            functions[RecordingPicture] = of_picture(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if session.twins is not None:
                return session.twins.through(original, call, args, kwargs, original.__name__ if begins else "")
            given = args[0] if args else None
            if begins and args and session.calls is not None:
                args = (begun(given, original.__name__, functions), *args[1:])
            instead = functions.get(type(args[0])) if args else None
            if instead is None or not session.active:
                return original(*args, **kwargs)
            try:
                made = instead(*args, **kwargs)
                return given if made is args[0] else made
            except NotRecordable as error:
                session.settles(error)
            return on_pixels(args[0], original, args[1:], kwargs)

        return call

    return make


#: Functions that look into the memory of tensors past torch's own hooks: those that wrap the tensors given to ``vmap``,
#: ``grad`` and their like, and those that make a tensor of one.
_PAST_HOOKS = ((vmap, "_create_batched_inputs"),
               (eager_transforms, "_wrap_tensor_for_grad"), (eager_transforms, "_wrap_all_tensors_to_functional"),
               (torch.jit, "trace"), (torch.nested, "nested_tensor"))  # fmt: skip


def _of_real_images(original: _Function) -> _Function:
    """Call a function with real images in place of recorded ones, however deep they lie in its arguments."""

    def settled(image: Any) -> Any:
        session.settles(NotRecordable(needs_pixels(original.__name__)))
        return image.settled()

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if session.active:
            args, kwargs = tree_map_only(Unreadable, settled, (args, kwargs))
        return original(*args, **kwargs)

    return call


def _stood_for(image: Any) -> Any:
    return getattr(image, "stands_for", image)


def _fill_of(original: _Function) -> _Function:
    """Look up fill values by the type that a recording image stands for; they are keyed by image type."""
    return lambda fills, image_type: original(fills, _stood_for(image_type))


def _dtype_of(original: _Function) -> _Function:
    """Look up the dtype of a ``ToDtype`` with a dtype per image type by the type that a recording image stands for."""

    @functools.wraps(original)
    def transform(self: Any, image: Any, params: Any) -> Any:
        if not session.active or not is_recording(image) or not isinstance(self.dtype, dict):
            return original(self, image, params)
        if image.stands_for not in self.dtype and "others" not in self.dtype:
            raise NotRecordable(f"ToDtype knows no dtype for {image.stands_for.__name__}")
        dtype = self.dtype.get(image.stands_for, self.dtype.get("others"))
        return image if dtype is None else self._call_kernel(F.to_dtype, image, dtype=dtype, scale=self.scale)

    return transform


def _mixing(how: str, value: str) -> _Make:
    """Record MixUp or CutMix on a batch of recording images. Labels are mixed as before."""

    def make(original: _Function) -> _Function:
        @functools.wraps(original)
        def transform(self: Any, batch: Any, params: Any) -> Any:
            if session.twins is not None:
                return session.twins.through(original, transform, (self, batch, params), {})
            if not session.active or not isinstance(batch, RecordingStack):
                return original(self, batch, params)
            self._check_image_or_video(batch, batch_size=params["batch_size"])
            return batch.mixed(how, params[value])

        return transform

    return make


def _real_patches() -> Iterator[_Patch]:
    """Yield the replacements of what records by itself on recording images, but must be told of calls on real ones: for
    their twins, or because a recording may begin there."""
    for name in METHODS:
        yield _Patch(PIL.Image.Image, name, functools.partial(_with_twin, name))
    for functional, kernels in dispatch._KERNEL_REGISTRY.items():
        if functional.__name__ in FUNCTIONALS:
            for cls in kernels.keys() & _REAL:
                yield _Kernel(kernels, cls, functional)


_REAL = {Tensor, tv_tensors.Image, tv_tensors.Mask, tv_tensors.Video, PIL.Image.Image}
#: Methods of pictures at whose calls no recording begins: most often they leave the pixels as they are.
_UNCHANGING = ("copy", "convert")


def _with_twin(name: str, original: _Function) -> _Function:
    def record(twin: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(twin, name)(*args, **kwargs)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        twins = session.twins
        if twins is not None:
            return twins.through(original, record, args, kwargs, "" if name in _UNCHANGING else name)
        image = args[0] if name in _UNCHANGING else begun(args[0], name)
        if image is args[0]:
            return original(*args, **kwargs)
        made = record(image, *args[1:], **kwargs)
        return args[0] if made is image else made

    OF_TWINS[name] = call
    return call


class _Patch:
    """Replacement of a library's function, which may have layers of pipediag's on top."""

    def __init__(self, owner: Any, name: Any, make: _Make) -> None:
        self._owner, self._name, self._make = owner, name, make
        self._table = vars(owner)
        self._original: _Function | None = None
        self._replacement: _Function | None = None

    def install(self) -> None:
        """Replace the library's own function; leave anybody else's."""
        now = self._table.get(self._name)
        if now is self._replacement:
            return
        if now is not self._original and self._may_replace(now):
            self._original, self._replacement = now, self._make(now)
        if self._original is not None and now is self._original:
            self._put(self._replacement)

    def _may_replace(self, function: Any) -> bool:
        native = beneath(function)
        another = isinstance(self._name, str) and getattr(native, "__name__", "") != self._name
        return is_native(native, self._owner) and not another

    def remove(self) -> None:
        if self._original is not None and self._table.get(self._name) is self._replacement:
            self._put(alive(self._original))

    def _put(self, function: Any) -> None:
        setattr(self._owner, self._name, function)


class _Kernel(_Patch):
    """Replacement of the kernel for real images of one type in torchvision's dispatcher."""

    def __init__(self, kernels: Any, cls: type, functional: _Function) -> None:
        super().__init__(F, cls, functools.partial(self._with_twin, functional))
        self._table = kernels

    def _put(self, function: Any) -> None:
        self._table[self._name] = function

    @staticmethod
    def _with_twin(functional: _Function, kernel: _Function) -> _Function:
        @functools.wraps(kernel)
        def call(*args: Any, **kwargs: Any) -> Any:
            twins = session.twins
            if twins is not None:
                return twins.through(kernel, functional, args, kwargs, functional.__name__)
            image = begun(args[0], functional.__name__) if args else None
            if not args or image is args[0]:
                return kernel(*args, **kwargs)
            made = functional(image, *args[1:], **kwargs)
            return args[0] if made is image else made

        return call


class _Imported(_Patch):
    """Replacement of a function, which ``patch`` replaces in its library, in a module that has imported it by name."""

    def __init__(self, module: types.ModuleType, name: str, patch: _Patch) -> None:
        super().__init__(module, name, patch._make)
        self._original, self._replacement = patch._original, patch._replacement

    def _may_replace(self, function: Any) -> bool:
        return False


class _Collate(_Patch):
    """Replacement of torch's collate function for tensors: a recorded image may follow a real one."""

    def __init__(self) -> None:
        super().__init__(torch.utils.data._utils.collate, Tensor, self._with_recorded)
        self._table = default_collate_fn_map

    def _put(self, function: Any) -> None:
        self._table[self._name] = function

    @staticmethod
    def _with_recorded(original: _Function) -> _Function:
        @functools.wraps(original)
        def call(batch: Any, **kwargs: Any) -> Any:
            return (_collate if session.active and any(map(is_recording, batch)) else original)(batch, **kwargs)

        return call


class _Patches:
    """Several replacements. They are in place while any thread records."""

    def __init__(self, patches: Iterable[_Patch]) -> None:
        self._all = list(patches)
        self._recordings = 0
        self._searched: set[str] = set()  # names of modules

    def begin(self) -> None:
        with SWAPPING:
            self._recordings += 1
            for patch in self._all:
                patch.install()
            if len(sys.modules) != len(self._searched):
                self._search()

    def end(self) -> None:
        with SWAPPING:
            self._recordings -= 1
            if not self._recordings:
                for patch in self._all:
                    patch.remove()

    def _search(self) -> None:
        """Replace the functions in modules that are new and have imported them by name, too."""
        known = {id(patch._original): patch for patch in self._all if patch._original is not None}
        new = [(name, module) for name, module in [*sys.modules.items()] if name not in self._searched]
        self._searched = {*sys.modules}
        for of, module in new:
            if type(module) is not types.ModuleType or of.partition(".")[0] in _NOT_SEARCHED:
                continue
            for name, value in [*vars(module).items()]:
                if type(value) is types.FunctionType and id(value) in known:
                    self._all.append(_Imported(module, name, known[id(value)]))
                    self._all[-1].install()


#: Packages whose modules hold the functions themselves, and ours.
_NOT_SEARCHED = frozenset({"torchvision", "PIL", __name__.partition(".")[0]})
_PATCHES = _Patches([*(_Patch(*patch) for patch in _patches()), _Collate()])
_REAL_PATCHES = _Patches(_real_patches())


@contextmanager
def recording(refused: frozenset[str] = frozenset(), twins: Any = None, calls: Calls | None = None) -> Iterator[None]:
    """Make the functions of torchvision and Pillow record calls on recording images inside the context.

    This holds for the calling thread. Recordings can be nested.

    Args:
        refused: names of functions that are not recorded.
        twins: if given, user code gets real images, and the calls are recorded with these images' twins.
        calls: the calls of plain code on real images at which a recording begins, if any.
    """
    register()
    patches = [_PATCHES] if twins is None and calls is None else [_PATCHES, _REAL_PATCHES]
    recorded_here = session.begun(refused, twins, calls)
    with live("functions of torchvision and Pillow"), recorded_here, twins or nullcontext():
        for one in patches:
            one.begin()
        try:
            yield
        finally:
            for one in patches:
                one.end()
