"""Record the calls on real images while they execute.

Each real image has a twin, a recording image without pixels. User code gets real images only, so it does what it does
without pipediag, and runs once. A library's function that can be recorded runs on the image and, from the same random
state, on its twin; so does a whole transform of torchvision's, on the path that records it in training. An image that
user code makes or changes by itself has no twin.
"""

from __future__ import annotations

import itertools
import random
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torchvision.transforms import functional as older

from ...usercode import randomness
from ...usercode.links import Link, is_called_plainly, run
from ...usercode.objects import leaves
from ..decode.undecoded import decoded
from ..ops.library_code import calls_own_only, is_original
from ..ops.op import NotRecordable
from ..ops.table import OLDER
from ..storage import bytes_of, place_of
from .call import itself
from .colour_matrices import ANSWERS
from .drawing import functionals
from .images import retyped
from .plain_code import begun
from .recorder import Recorder, stood_in
from .session import session, why_not_now
from .substitutes import is_recording

_Function = Callable[..., Any]
#: Functions that torchvision's transforms draw with.
_TORCHS_DRAWS = ("rand", "randint", "randperm", "randn_like", "multinomial", "empty")
_PYTHONS_DRAWS = ("random", "choices", "shuffle")


class Twins(TorchFunctionMode):  # type: ignore[misc]
    """The real images that have a twin. As a context, it follows the methods of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""  # why an image lost its twin, for the first one that did
        #: The state of the generators after the first call that drew something else for the twin; else None.
        self.deviating: tuple[Any, ...] | None = None
        self._known: dict[int, tuple[Any, Any, int | None]] = {}  # by id: the image, its twin, a checksum of its pixels
        #: Ids of tensors by their place: one that is given another type is another object.
        self._at: dict[tuple[int, int], int] = {}
        self._inside = False  # True while a library's function runs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__iter__:
            return iter(self.through(Tensor.unbind, Tensor.unbind, args, kwargs or {}))
        record = _FOLLOWED.get(func)
        if record is None:
            return func(*args, **kwargs or {})
        return self.through(record if record is _written else func, record, args, kwargs or {})

    def has(self, value: Any) -> bool:
        return any(id(leaf) in self._known for leaf in tree_leaves(value))

    def of(self, value: Any) -> Any:
        """Return an image's twin, or the value itself if it has none."""
        known = self._known.get(id(value))
        if known is None and isinstance(value, Tensor) and value.layout == torch.strided and value.numel():
            known = self._known.get(self._at.get(place_of(value), 0))
            if known is not None and _kind(known[0]) != _kind(value):
                known = None
        if known is None:
            return value
        image, twin, pixels = known
        if pixels is not None and _checksum(image) != pixels:
            del self._known[id(image)]
            self.lost("an image is written into")
            return value
        return twin if twin.stands_for is type(value) or not isinstance(value, Tensor) else retyped(twin, type(value))

    def begin(self, value: Any, private: bool = False) -> list[Any]:
        """Give twins to the images that a recorded transform gets, and return these images.

        ``private`` says that no user code runs until the first call on them.
        """
        begun, self._inside = [], True
        try:
            for image, twin in zip(tree_leaves(value), tree_leaves(stood_in(tree_map(itself, value))), strict=True):
                if is_recording(twin):
                    self._pair(image, twin, private)
                    begun.append(image)
        except Exception as error:
            self.lost(f"{type(error).__name__}: {error}")
        finally:
            self._inside = False
        return begun

    def end(self, begun: list[Any], result: Any) -> None:
        """Forget the twins of the images that a transform got, but for those that it returned."""
        kept = set(map(id, tree_leaves(result)))
        for image in begun:
            if id(image) not in kept:
                self._known.pop(id(image), None)

    def keep(self, samples: list[Any]) -> None:
        """Forget all images that are not part of these samples."""
        kept = {id(leaf) for leaf in leaves(samples)}
        self._known = {key: known for key, known in self._known.items() if key in kept}
        self._at = {address: key for address, key in self._at.items() if key in kept}

    def through(self, function: _Function, record: _Function, args: Any, kwargs: Any, begins: str = "") -> Any:
        """Call a library's function, and record the call with the twins of the images among its arguments.

        ``begins`` is the name of a function at whose calls in plain code a recording may begin.
        """
        if self._inside or session.twins is not self or not calls_own_only(function):  # user code runs inside of it
            return function(*args, **kwargs)
        if why := why_not_now():
            self.lost(why)
            return function(*args, **kwargs)
        self._inside = True
        try:
            if begins and args and session.calls is not None and not self.has(args[0]):
                self._begin_at(args[0], begins)
            recorded, drawn = self._recorded(record, args, kwargs)
            made = function(*args, **kwargs)
            self._note(made, recorded, drawn)
            return made
        finally:
            self._inside = False

    def lost(self, why: str) -> None:
        """Note why an image has no twin any more."""
        self.why = self.why or why

    def _begin_at(self, image: Any, function: str) -> None:
        """Give the image a twin if the recording begins at this call of plain code."""
        try:
            with session.of_twins():
                twin = begun(image, function)
            if is_recording(twin):
                self._pair(image, twin)
        except Exception as error:
            self.lost(f"{type(error).__name__}: {error}")

    def _recorded(self, record: _Function, args: Any, kwargs: Any) -> tuple[Any, tuple[Any, ...] | None]:
        """Return the result of the call with twins, and the state of the generators after it; None if there is none.

        It raises nothing: what fails here is no failure of the user's.
        """
        begun, raised = None, NotRecordable.raised
        try:
            twins = tree_map(self.of, (args, kwargs))
            if not any(map(is_recording, tree_leaves(twins))):
                return None, None
            begun = randomness.state()
            with session.of_twins():
                made = record(*twins[0], **twins[1])
            return made, randomness.state()
        except Exception as error:
            self.lost(f"{type(error).__name__}: {error}")
            return None, None
        finally:
            NotRecordable.raised = raised
            if begun is not None:
                randomness.restore(begun)

    def _note(self, made: Any, recorded: Any, drawn: tuple[Any, ...] | None) -> None:
        """Pair the images in the result with those in the recorded result. It raises nothing either."""
        if drawn is None:
            return
        if self.deviating is None and randomness.moved(drawn, randomness.state()):
            self.deviating = drawn
        try:
            for image, twin in zip(tree_leaves(made), tree_leaves(recorded), strict=True):
                if is_recording(twin):
                    twin.tape.open = False
                    self._pair(image, twin)
        except Exception as error:
            self.lost(f"{type(error).__name__}: {error}")

    def _pair(self, image: Any, twin: Any, private: bool = False) -> None:
        self._known[id(image)] = image, twin, None if private else _checksum(image)
        if isinstance(image, Tensor):
            self._at[place_of(image)] = id(image)


def _kind(image: Tensor) -> tuple[Any, ...]:
    return image.shape, image.stride(), image.dtype


def _checksum(image: Any) -> int:
    with torch._C.DisableTorchFunction():
        if isinstance(image, Tensor):
            plain = decoded(image).detach().as_subclass(Tensor).contiguous()
            return zlib.adler32(bytes_of(plain))
    return zlib.adler32(np.ascontiguousarray(np.asarray(image)))


def _written(image: Any, index: Any, value: Any) -> Any:
    image[index] = value
    return image


#: Functions and methods that recording tensors have too, besides what :mod:`.hooks` patches.
_FOLLOWED: dict[Any, _Function] = {
    **{function: function for function in ANSWERS if getattr(function, "__name__", "") != "__get__"},
    Tensor.to: lambda image, *args, **kwargs: image.to(*args, **kwargs),
    Tensor.float: lambda image: image.float(),
    Tensor.contiguous: lambda image, **kwargs: image.contiguous(**kwargs),
    Tensor.cpu: lambda image: image.cpu(),
    Tensor.detach: lambda image: image.detach(),
    Tensor.__setitem__: _written,
    torch.stack: lambda tensors, dim=0, out=None: torch.stack(tensors, dim),
}


class Following(Recorder):
    """Recorder that runs its links on real images and records those from ``start`` on.

    It is for one batch, which it assumes to change no transform of torchvision's.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._steps: list[tuple[range, bool]] = []  # the links from ``start`` on, and whether torchvision's own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        twins: Twins | None = session.twins
        if twins is None or twins.has((args, kwargs)):
            return self.transform(*args, **kwargs)
        if why := why_not_now():
            twins.lost(why)
            return self.transform(*args, **kwargs)
        if not self._is_current():
            made = self.transform(*args, **kwargs)
            twins.begin(made)
            return made
        if kwargs:  # this transform is no chain, which takes no keyword arguments
            begun = twins.begin((args, kwargs))
            session.site, transform = 0, self.transform
            whole = is_librarys(transform)
            made = twins.through(transform, transform, args, kwargs) if whole else transform(*args, **kwargs)
        else:
            value = run(self.links[: self.start], args)
            self._steps = self._steps or list(self._in_steps())
            begun = twins.begin(value, private=self._steps[0][1])
            draws = self._up_to_date() if len(value) == 1 and begun and begun[0] is value[0] else self.links
            for step, followed in self._steps:
                session.site = step.start
                value = run((self._follow(twins, step, draws) if followed else self.links[step.start],), value)
            made = value if len(args) > 1 else value[0]
        twins.end(begun, made)
        return made

    def _in_steps(self) -> Iterator[tuple[range, bool]]:
        """Yield links of torchvision's together, since no user code sees what they hand on; any other link by itself.
        Only the former may be recorded apart from their execution."""
        followed = [*map(is_librarys, self.links)]
        for together, sites in itertools.groupby(range(self.start, len(self.links)), followed.__getitem__):
            if together:
                first, *_, last = [*sites] * 2
                yield range(first, last + 1), True
            else:
                yield from ((range(site, site + 1), False) for site in sites)

    def _follow(self, twins: Twins, step: range, draws: Sequence[Any]) -> Link:
        def record(*value: Any) -> Any:
            for site in step:
                session.site = site
                value = run((draws[site],), value)
            return value if len(value) > 1 else value[0]

        def execute(*value: Any) -> Any:
            value = run([self.links[site] for site in step], value)
            return value if len(value) > 1 else value[0]

        return lambda *value: twins.through(execute, record, value, {})


def is_librarys(link: Any) -> bool:
    """Return whether a call of the link runs torch's and torchvision's code only, and none of the user's."""
    if not is_called_plainly(link) or not _draws_by_itself():
        return False
    called = [*filter(None, (*functionals(), *(getattr(older, name, None) for name in OLDER)))]
    return is_original(*called) and calls_own_only(*called) and _is_data(link)


def _draws_by_itself() -> bool:
    """Return whether what torchvision draws with is torch's and Python's own: no code of the user's in their place."""
    mine = (vars(torch).get(name) for name in _TORCHS_DRAWS)
    return all(type(draw) is types.BuiltinFunctionType for draw in mine) and all(
        getattr(getattr(random, name), "__self__", None) is random._inst for name in _PYTHONS_DRAWS
    )


def _is_data(value: Any) -> bool:
    """Return whether a value is plain data, or an object of torch's or torchvision's that holds only such."""
    if value is None or isinstance(value, (int, float, str, Enum, torch.dtype, np.ndarray)) or type(value) is Tensor:
        return True
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return all(map(_is_data, value.values() if isinstance(value, dict) else value))
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return is_original(value)
    if isinstance(value, types.MethodType):  # Python's own type, which shows the attributes of any function
        return is_original(value.__func__) and _is_data(value.__self__)
    kind = type(value)
    members = (member for base in kind.__mro__ for member in vars(base).values() if type(member) is types.FunctionType)
    return is_original(kind, *members) and hasattr(value, "__dict__") and _is_data(vars(value))
