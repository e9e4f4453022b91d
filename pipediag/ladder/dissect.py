"""Taking a sample apart: what went into the transforms, and where their results sit in the sample.

One ``__getitem__`` runs with every transform spied upon. Each call's result is then looked for, by identity, in the
sample that came back. The sample with holes where results were, together with the recorded inputs, is the raw
sample: replaying it means calling the transforms on the inputs again and filling the holes.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from .. import marker
from . import tree
from .slots import Slot

Path = tuple[Any, ...]

HELP = 'mark the call whose result goes into the sample: return pipediag.stage("augment")(prepare)(raw), label'


class NotSeparable(Exception):
    """The transforms cannot be told apart from the rest of the dataset's code; the message says why."""


@dataclass
class Call:
    """One recorded call of a transform."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mutates: bool = False


@dataclass
class _Seen:
    """A call while it is being linked to the sample: the very objects that went in and came out."""

    call: Call
    inputs: Any
    result: Any


@dataclass
class Recorder:
    """Collects the outermost calls of spied transforms while one sample is made."""

    seen: list[_Seen] = field(default_factory=list)
    _inside: bool = False

    def call(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._inside:  # a transform that calls another: the outer one is the stage
            return fn(*args, **kwargs)
        self._inside = True
        try:
            kept = _private((args, kwargs))
            result = fn(*args, **kwargs)
        finally:
            self._inside = False
        if _is_path(args):  # reads a file: that is loading
            return result
        mutates = not _same((args, kwargs), kept)
        self.seen.append(_Seen(Call(name, fn, kept[0], kept[1], mutates), (args, kwargs), result))
        return result


class Spy:
    """Stands in for a transform while a sample is dissected; everything but calling it goes to the original."""

    def __init__(self, name: str, fn: Callable[..., Any], recorder: Recorder) -> None:
        self.__dict__.update(_name=name, _fn=fn, _recorder=recorder)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._recorder.call(self._name, self._fn, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fn, name)

    def __bool__(self) -> bool:
        return bool(self._fn)


@dataclass
class RawSample:
    """A sample as it was before its transforms: replay makes it again, with fresh random draws."""

    calls: list[Call]
    sample: Any
    #: For each call: (path inside its result, path inside the sample).
    holes: list[list[tuple[Path, Path]]]
    #: For each call, the earlier calls whose results are among its arguments, as
    #: (path in (args, kwargs), number of the earlier call, path in its result).
    feeds: list[list[tuple[Path, int, Path]]]

    def replay(self) -> tuple[Any, float]:
        """The sample made again, and the seconds that copying inputs took, which are not the transforms'."""
        sample, copying = self.sample, 0.0
        results: list[Any] = []
        for call, holes, feeds in zip(self.calls, self.holes, self.feeds, strict=True):
            inputs: Any = (call.args, call.kwargs)
            if call.mutates:
                started = time.perf_counter()
                inputs = _private(inputs)
                copying += time.perf_counter() - started
            for where, earlier, path in feeds:
                inputs = _replace(inputs, where, _follow(results[earlier], path))
            result = call.fn(*inputs[0], **inputs[1])
            results.append(result)
            for path, where in holes:
                sample = _replace(sample, where, _follow(result, path))
        return sample, copying

    def nbytes(self) -> int:
        return sum(tree.nbytes((c.args, c.kwargs)) for c in self.calls)


def take_apart(make: Callable[[], Any], slots: list[Slot]) -> RawSample:
    """Run ``make`` (one ``__getitem__``) with the transforms in ``slots`` and all marked calls recorded.

    Raises:
        NotSeparable: no transform was called, or a result is not part of the sample as it is.
    """
    recorder = Recorder()
    with spied(slots, recorder):
        sample = make()
    if not recorder.seen:
        raise NotSeparable(f"no transform was found that the dataset calls; {HELP}")
    return _with_holes(recorder.seen, sample)


@contextmanager
def spied(slots: list[Slot], recorder: Recorder) -> Iterator[None]:
    """Every slot's transform and every marked call reports to ``recorder`` meanwhile."""
    with ExitStack() as stack:
        for slot in slots:
            stack.enter_context(slot.replaced(Spy(slot.name, slot.get(), recorder)))
        before, marker.recorder = marker.recorder, recorder
        stack.callback(setattr, marker, "recorder", before)
        yield


def _with_holes(seen: list[_Seen], sample: Any) -> RawSample:
    places = {id(leaf): path for path, leaf in _paths(sample) if _has_identity(leaf)}
    produced: dict[int, tuple[int, Path]] = {}
    used: set[int] = set()
    holes: list[list[tuple[Path, Path]]] = []
    feeds: list[list[tuple[Path, int, Path]]] = []
    for number, one in enumerate(seen):
        fed = [(p, *produced[id(leaf)]) for p, leaf in _outermost(one.inputs, produced)]
        feeds.append(fed)
        used.update(earlier for _, earlier, _ in fed)
        if fed:  # its input is made anew at every replay, so it may be changed freely
            one.call.mutates = False
        holes.append([(path, places[id(leaf)]) for path, leaf in _outermost(one.result, places)])
        produced.update({id(leaf): (number, path) for path, leaf in _paths(one.result) if _has_identity(leaf)})
    for number, one in enumerate(seen):
        matters = any(_has_identity(leaf) for _, leaf in _paths(one.result))
        if matters and not holes[number] and number not in used:
            raise NotSeparable(
                f"the result of {one.call.name} is changed after the call, so it is not found in the sample; {HELP}"
            )
    if not any(holes):
        raise NotSeparable(f"no transform's result is found in the sample; {HELP}")
    for hole in (where for found in holes for _, where in found):
        sample = _replace(sample, hole, None)  # what stood there is not needed any more
    return RawSample([one.call for one in seen], sample, holes, feeds)


def _outermost(obj: Any, known: Mapping[int, Any]) -> list[tuple[Path, Any]]:
    """Parts of ``obj`` that are known by identity, without the parts of such parts."""
    found: list[tuple[Path, Any]] = []
    for path, leaf in _paths(obj):
        inside = any(path[: len(outer)] == outer for outer, _ in found)
        if not inside and _has_identity(leaf) and id(leaf) in known:
            found.append((path, leaf))
    return found


def _has_identity(leaf: Any) -> bool:
    """Numbers, strings and None are shared by the interpreter: their identity says nothing."""
    return not isinstance(leaf, (int, float, complex, str, bytes, bool, type(None)))


def _paths(obj: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """Every leaf with the way to it, the containers it is in included, outermost first."""
    found = [(path, obj)]
    if isinstance(obj, (tuple, list)):
        for i, item in enumerate(obj):
            found += _paths(item, (*path, i))
    elif isinstance(obj, Mapping):
        for key, item in obj.items():
            found += _paths(item, (*path, key))
    elif _plain_object(obj):
        for name, item in vars(obj).items():
            found += _paths(item, (*path, _Attribute(name)))
    return [(p, leaf) for p, leaf in found if not (isinstance(leaf, tuple) and not leaf)]


class _Attribute(str):
    """A step of a path that is an attribute rather than a key."""


def _plain_object(obj: Any) -> bool:
    """A sample class of the user's: looked into, unlike arrays, tensors and images."""
    module = type(obj).__module__.split(".")[0]
    return hasattr(obj, "__dict__") and module not in ("torch", "torchvision", "numpy", "PIL", "builtins")


def _follow(obj: Any, path: Path) -> Any:
    for step in path:
        obj = getattr(obj, step) if isinstance(step, _Attribute) else obj[step]
    return obj


def _replace(obj: Any, path: Path, value: Any) -> Any:
    """``obj`` with ``value`` at ``path``; containers on the way are copied, the rest is shared."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, _Attribute):
        fresh = copy.copy(obj)
        object.__setattr__(fresh, step, _replace(getattr(obj, step), rest, value))
        return fresh
    if isinstance(obj, tuple):
        items = list(obj)
        items[step] = _replace(obj[step], rest, value)
        return type(obj)(*items) if hasattr(obj, "_fields") else type(obj)(items)
    fresh = copy.copy(obj)
    fresh[step] = _replace(obj[step], rest, value)
    return fresh


def _private(value: Any) -> Any:
    """A copy deep enough that changing it leaves the original alone."""
    return tree.map_leaves(value, _private_leaf)


def _private_leaf(leaf: Any) -> Any:
    if type(leaf).__module__.split(".")[0] == "torch" and hasattr(leaf, "clone"):
        return leaf.clone()
    if hasattr(leaf, "copy") and callable(leaf.copy):  # arrays, images
        return leaf.copy()
    return leaf if not _plain_object(leaf) else copy.deepcopy(leaf)


def _same(left: Any, right: Any) -> bool:
    """Whether two structures hold equal data."""
    a, b = list(tree.leaves(left)), list(tree.leaves(right))
    return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))


def _equal(x: Any, y: Any) -> bool:
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    try:
        if hasattr(x, "shape"):
            return bool(x.shape == y.shape and ((x == y) | ((x != x) & (y != y))).all())
        return bool(x == y)
    except Exception:  # no comparison to be had: copying each time is the safe side
        return False


def _is_path(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], (str, os.PathLike)) and os.path.exists(args[0])
